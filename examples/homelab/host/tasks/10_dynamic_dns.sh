#!/bin/sh
# Installs the unit that keeps the machine's name current, or removes it.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/../.." && pwd)
. "$root/scripts/lib.sh"
begin "apply delete" "$@"

unit=$state/systemd/dynamic-dns.service
mark="# managed by homelab: $step"

# Whether the unit file is one that this step wrote.
is_managed() {
    [ -f "$unit" ] && [ "$(head -n 1 "$unit")" = "$mark" ]
}

wanted() {
    cat <<END
$mark
[Unit]
Description=Keep ${DDNS_HOST:-home.homelab.test} current

[Service]
ExecStart=/usr/local/bin/dynamic-dns --interval ${DDNS_INTERVAL:-5min} ${DDNS_HOST:-home.homelab.test}
END
}

if [ -e "$unit" ] && ! is_managed; then
    if [ "$mode" = apply ]; then
        check bad dynamic-dns.unit "$unit is not from this step and is not overwritten"
        changed false
        exit 1
    fi
    check warn dynamic-dns.unit "$unit is not from this step and stays"
    changed false
    exit 0
fi

case $mode in
    apply)
        if is_managed && [ "$(cat "$unit")" = "$(wanted)" ]; then
            changed false
        else
            mkdir -p "${unit%/*}"
            wanted >"$unit"
            echo "wrote $unit"
            changed true
        fi
        ;;
    delete)
        if is_managed; then
            rm -f "$unit"
            rmdir "${unit%/*}" 2>/dev/null || true
            echo "removed $unit"
            changed true
        else
            changed false
        fi
        ;;
esac
