#!/bin/sh
# Hands the runtime inputs over; arguments are those of `stead steps run`.
exec "${STEAD_BIN:-stead}" steps run "$(dirname "$0")/../../steps/cluster.yaml" --only sync-runtime-inputs.sh "$@"
