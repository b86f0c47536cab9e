#!/bin/sh
# Removes the inputs document, unless there are volumes: nothing is torn down under live data.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin delete "$@"

failed=false
for volume in "$state"/volumes/* "$state"/volumes/.[!.]*; do
    if [ ! -e "$volume" ] && [ ! -L "$volume" ]; then
        continue
    fi
    # The key of a check takes fewer characters than a file name may have.
    name=$(basename "$volume" | tr -c 'A-Za-z0-9_.:/\n-' _)
    check bad "volume:$name" "still holds data"
    failed=true
done
if [ "$failed" = true ]; then
    changed false
    exit 1
fi

if [ -e "$state/runtime-inputs.yaml" ]; then
    rm -f "$state/runtime-inputs.yaml"
    echo "removed the inputs document"
    changed true
else
    changed false
fi
