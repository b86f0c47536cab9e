#!/bin/sh
# Removes what cert-manager leaves behind.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin delete "$@"

if [ -d "$state/certificates" ]; then
    rm -rf "$state/certificates"
    echo "removed the certificates"
    changed true
else
    echo "no certificates are left"
    changed false
fi
