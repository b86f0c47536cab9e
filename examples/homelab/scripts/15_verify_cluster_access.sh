#!/bin/sh
# Checks that the cluster can be reached. Changes nothing and takes no argument.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
begin apply "$@"

changed false
if [ -e "$state" ] && [ ! -d "$state" ]; then
    check bad cluster.access "$state is not a directory"
    exit 1
fi
check ok cluster.access "the cluster of ${STEAD_TARGET:-this lab} can be reached"
