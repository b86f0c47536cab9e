#!/bin/sh
# Installs the network, or removes it.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin "apply delete" "$@"

case $mode in
    apply) ensure_marker cilium ;;
    delete) ensure_no_marker cilium ;;
esac
