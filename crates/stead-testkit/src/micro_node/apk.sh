#!/bin/sh
# As much of apk as is asked of it: packages are programs in /packages.
database=/lib/apk/db/installed
verb='' simulate='' names=''
for word; do
    case $word in
    --simulate) simulate=yes ;;
    --*) ;;
    *) if [ -z "$verb" ]; then verb=$word; else names="$names $word"; fi ;;
    esac
done
for name in $names; do
    name=${name%%=*}
    case $verb in
    policy)
        [ ! -e "/packages/$name" ] || printf '%s policy:\n  1.0-r0:\n    /packages\n' "$name"
        ;;
    add)
        if grep -qx "P:$name" "$database"; then continue; fi
        if [ ! -e "/packages/$name" ]; then
            echo "ERROR: unable to select packages: $name (no such package)" >&2
            exit 1
        fi
        echo "(1/1) Installing $name (1.0-r0)"
        if [ -z "$simulate" ]; then
            cp "/packages/$name" "/usr/bin/$name"
            printf 'P:%s\nV:1.0-r0\n\n' "$name" >>"$database"
        fi
        ;;
    esac
done
