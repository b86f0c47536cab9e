#!/bin/sh
set -eu
if [ "${1:-}" = --delete ]; then rm -f "$PLACE/app.conf"; exit; fi
echo "host=$APP_HOST replicas=$REPLICAS" >"$PLACE/app.conf"
echo "::output url=https://$APP_HOST/"
