#!/bin/sh
set -eu
if [ "${1:-}" = --delete ]; then rm -rf "$PLACE"; exit; fi
if [ -d "$PLACE" ]; then echo "::changed false"; else mkdir -p "$PLACE"; fi
