#!/bin/sh
# Installs Stead from the directory this file lies in; fetches nothing.
#
# usage: ./install.sh [--prefix DIR] [--systemd] [--uninstall]
#   --prefix DIR   where to [default: /usr/local]
#   --systemd      its units too, to /etc/systemd/system; none is started
#   --uninstall    remove what was installed there
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local systemd= uninstall=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?--prefix needs a directory}; shift ;;
        --systemd) systemd=1 ;;
        --uninstall) uninstall=1 ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "install.sh: unknown argument $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
units=/etc/systemd/system

cd "$here"
files=$(find bin share -type f | LC_ALL=C sort)
if [ -n "$uninstall" ]; then
    for file in $files; do rm -f "$prefix/$file"; done
    rmdir "$prefix/share/doc/stead" 2>/dev/null || true
    if [ -n "$systemd" ]; then for unit in systemd/*.service; do rm -f "$units/${unit##*/}"; done; fi
    echo "removed Stead from $prefix"
    exit 0
fi
# The program last: whoever finds it has the rest.
for file in $(echo "$files" | grep -v '^bin/') bin/stead; do
    mkdir -p "$prefix/$(dirname "$file")"
    # Under another name first: a program that runs cannot be written to.
    cp "$file" "$prefix/$file.new"
    mv "$prefix/$file.new" "$prefix/$file"
done
if [ -n "$systemd" ]; then
    # The units name /usr/bin/stead.
    for unit in systemd/*.service; do
        sed "s#/usr/bin/stead#$prefix/bin/stead#" "$unit" >"$units/${unit##*/}.new"
        mv "$units/${unit##*/}.new" "$units/${unit##*/}"
    done
fi
"$prefix/bin/stead" --version
