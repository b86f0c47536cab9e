#!/bin/sh
# Brings the stack to what clusters/home says, or takes it down.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin "apply delete" "$@"

different=false
for name in infrastructure platform tenants; do
    source=clusters/home/$name.yaml
    copy=$state/stack/$name.yaml
    case $mode in
        apply)
            if cmp -s "$source" "$copy"; then
                continue
            fi
            mkdir -p "$state/stack"
            cp "$source" "$copy"
            echo "reconciled $name"
            ;;
        delete)
            if [ ! -e "$copy" ]; then
                continue
            fi
            rm -f "$copy"
            echo "removed $name"
            ;;
    esac
    different=true
done
if [ "$mode" = delete ] && [ -d "$state/stack" ]; then
    rmdir "$state/stack" 2>/dev/null || echo "$state/stack holds something else and stays"
fi
changed "$different"
