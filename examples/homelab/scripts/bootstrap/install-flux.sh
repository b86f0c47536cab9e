#!/bin/sh
# Installs Flux, or removes it.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/../.." && pwd)
. "$root/scripts/lib.sh"
begin "apply delete" "$@"

case $mode in
    apply) ensure_marker flux ;;
    delete) ensure_no_marker flux ;;
esac
