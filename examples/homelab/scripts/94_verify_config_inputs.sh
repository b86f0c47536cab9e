#!/bin/sh
# Checks the values that the other steps rely on.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin apply "$@"

if [ -z "${STEAD_RUN_ID:-}" ]; then
    # Alone: the layers mean the same to a shell.
    set -a
    for layer in config.env profiles/local.env profiles/secrets.env; do
        # shellcheck source=/dev/null
        [ ! -f "$layer" ] || . "./$layer"
    done
    set +a
fi

# present KEY VALUE: the value is there. It is not repeated: it may be a secret.
present() {
    if [ -n "$2" ]; then
        check ok "$1" "is set"
    else
        check bad "$1" "is not set"
        failed=true
    fi
}

failed=false
present BASE_DOMAIN "${BASE_DOMAIN:-}"
present INGRESS_PROVIDER "${INGRESS_PROVIDER:-nginx}"
if [ "${TIMEOUT_SECS:-300}" -ge 1 ] 2>/dev/null; then
    check ok TIMEOUT_SECS "is ${TIMEOUT_SECS:-300} s"
else
    check bad TIMEOUT_SECS "is no number of seconds"
    failed=true
fi
if [ "${FEAT_OAUTH2_PROXY:-true}" = true ]; then
    present OIDC_CLIENT_SECRET "${OIDC_CLIENT_SECRET:-}"
fi
changed false
[ "$failed" = false ]
