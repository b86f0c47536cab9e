#!/bin/sh
# Whether a service starts at boot: a link.
case $1 in
add) ln -sf "/etc/init.d/$2" "/etc/runlevels/default/$2" ;;
del) rm -f "/etc/runlevels/default/$2" ;;
esac
