# Looks at a machine for `stead doctor` and `stead agent check`. $1: the wanted directory or nothing. $2: a hash.
# Prints `KEY VALUE` lines and leaves nothing behind.
LC_ALL=C
export LC_ALL
echo 'stead-look begins'
echo "now $(date +%s.%N)"
echo "uname $(uname -sm)"
uid=$(id -u)
echo "uid $uid"
echo "user $(id -un 2>/dev/null)"

# Sets `why` if the directory $1 cannot be used.
try() {
    why= made=
    if [ -L "$1" ]; then
        why='is a symbolic link'
        return
    fi
    if [ ! -d "$1" ]; then
        made=$1
        while [ ! -e "$(dirname "$made")" ]; do made=$(dirname "$made"); done
        (umask 077 && mkdir -p "$1") 2>/dev/null
    fi
    if [ ! -d "$1" ]; then
        why='cannot be made'
    elif [ ! -O "$1" ]; then
        why='belongs to another account'
    else
        probe=$1/.stead-look-$$
        if ! (umask 077 && printf '#!/bin/sh\nexit 0\n' >"$probe") 2>/dev/null; then
            why='cannot be written (permission, read-only or full)'
        elif ! { chmod 700 "$probe" && "$probe"; } 2>/dev/null; then
            why='programs may not run there (noexec)'
        fi
        rm -f "$probe"
    fi
    if [ -n "$made" ]; then
        gone=$1
        while rmdir "$gone" 2>/dev/null && [ "$gone" != "$made" ]; do gone=$(dirname "$gone"); done
        # What was made only in part starts at the top.
        rmdir "$made" 2>/dev/null
    fi
}

# Prints the first usable directory of those after the name $1, or why each is not; leaves it in `chosen`.
choose() {
    name=$1 chosen=
    shift
    for place in "$@"; do
        try "$place"
        if [ -z "$why" ]; then
            chosen=$place
            echo "$name $place"
            return
        fi
        echo "no-$name $place: $why"
    done
}

caches() {
    choose "$1" ${XDG_CACHE_HOME:+"$XDG_CACHE_HOME/stead"} ${HOME:+"$HOME/.cache/stead"} "/tmp/stead-$uid"
}

if [ -n "$1" ]; then
    choose workdir "$1"
    choose base "$1"
elif [ "$uid" = 0 ]; then
    caches workdir
    choose base /var/lib/stead
else
    caches workdir
    caches base
fi

stead=
if [ -n "$chosen" ] && [ -x "$chosen/bin/$2/stead" ]; then
    stead=$chosen/bin/$2/stead
elif command -v stead >/dev/null 2>&1; then
    stead=$(command -v stead)
fi
if [ -n "$stead" ]; then
    echo "stead $stead"
    echo "version $("$stead" --version 2>/dev/null </dev/null | head -n 1)"
fi

for program in zstd gzip; do
    if command -v "$program" >/dev/null 2>&1; then
        echo "unpacks $program"
        break
    fi
done

PATH=$PATH:/usr/sbin:/sbin
capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status 2>/dev/null)
# The bit of CAP_NET_RAW is the second of the fourth digit from the right.
case $capabilities in
*[2367abefABEF]???) echo 'capture af_packet' ;;
*)
    for program in tcpdump dumpcap; do
        if command -v "$program" >/dev/null 2>&1 && [ -n "$("$program" -D 2>/dev/null </dev/null | head -n 1)" ]; then
            echo "capture $program"
            break
        fi
    done
    ;;
esac
echo 'stead-look ends'
