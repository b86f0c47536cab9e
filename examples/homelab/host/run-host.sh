#!/bin/sh
# Runs the steps of the machine; arguments are those of `stead steps run`.
exec "${STEAD_BIN:-stead}" steps run "$(dirname "$0")/../steps/host.yaml" "$@"
