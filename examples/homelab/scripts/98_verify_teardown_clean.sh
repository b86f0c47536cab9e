#!/bin/sh
# Reports what a teardown has left.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin delete "$@"

failed=false
for made in flux cilium stack certificates runtime-inputs.yaml; do
    if [ -e "$state/$made" ]; then
        check bad "left.$made" "is still there"
        failed=true
    else
        check ok "left.$made" "is gone"
    fi
done
changed false
[ "$failed" = false ]
