#!/bin/sh
# Services are what their scripts start: `sleep`, kept by its process id.
pid=/run/openrc/$1.pid
runs() { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
[ -e "/etc/init.d/$1" ] || exit 1
case $2 in
status) runs || exit 3 ;;
start) runs || { "/etc/init.d/$1" & echo $! >"$pid"; } ;;
stop) ! runs || kill "$(cat "$pid")" ;;
esac
