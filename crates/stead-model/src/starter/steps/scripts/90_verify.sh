#!/bin/sh
if grep -q "host=$APP_HOST" "$PLACE/app.conf"; then
    echo "::check ok app.host $STEAD_OUTPUT_APP_URL is configured"
else
    echo "::check bad app.host another host is configured"
fi
echo "::changed false"
