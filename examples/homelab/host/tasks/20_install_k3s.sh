#!/bin/sh
# Installs k3s; removes it only if K3S_UNINSTALL is true.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/../.." && pwd)
. "$root/scripts/lib.sh"
begin "apply delete" "$@"

case $mode in
    apply) ensure_marker k3s ;;
    delete)
        if [ "${K3S_UNINSTALL:-false}" = true ]; then
            ensure_no_marker k3s
        else
            check warn k3s.kept "k3s stays; K3S_UNINSTALL=true removes it"
            changed false
        fi
        ;;
esac
