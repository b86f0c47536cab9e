#!/bin/sh
# Checks that the stack is what clusters/home says.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin apply "$@"

failed=false
for name in infrastructure platform tenants; do
    if cmp -s "clusters/home/$name.yaml" "$state/stack/$name.yaml"; then
        check ok "stack.$name" "is what clusters/home/$name.yaml says"
    else
        check bad "stack.$name" "is not what clusters/home/$name.yaml says"
        failed=true
    fi
done
if [ "$failed" = true ]; then
    echo "::suggest ./run.sh --only 32"
fi
changed false
[ "$failed" = false ]
