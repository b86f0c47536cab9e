# Writes its input to a file, whole or not at all. Says `same`, or `send` and later `done`; else `hash SHA256` or
# `fail REASON`. Arguments: directory, path, temporary path, mode, user, group, length, SHA-256.
dir=$1 path=$2 tmp=$3 mode=$4 user=$5 group=$6 length=$7 want=$8
umask 077
fail() { printf 'fail %s\n' "$1"; exit 1; }
large=
[ "$length" -gt 4194304 ] && large=1
make_hash "$length"
[ -d "$dir" ] || fail "the directory $dir is not there"
[ -d "$path" ] && fail 'it is a directory'
show() { stat -c "$1" -- "$3" 2>/dev/null || stat -f "$2" -- "$3"; }
is() { [ -z "$1" ] || [ "$1" = "$(show "%$2" "%$2" "$4")" ] || [ "$1" = "$(show "%$3" "%S$2" "$4")" ]; }
# Left as it is if that is right already: changing it needs rights, and takes setuid away.
own() { is "$user" u U "$1" && is "$group" g G "$1" || chown -- "$user${group:+:$group}" "$1"; }
if [ -f "$path" ] && [ ! -L "$path" ]; then
    if [ "$(wc -c <"$path")" -eq "$length" ] && [ "$(hash <"$path")" = "$want" ]; then
        : "${mode:=$(show %a %Lp "$path")}"
        own "$path" || fail 'its owner cannot be set'
        if [ -n "$mode" ] && [ "$(show %a %Lp "$path")" != "$mode" ]; then
            chmod -- "$mode" "$path" || fail 'its mode cannot be set'
        fi
        echo same
        exit 0
    fi
    : "${mode:=$(show %a %Lp "$path")}" "${user:=$(show %u %u "$path")}" "${group:=$(show %g %g "$path")}"
fi
trap 'rm -f -- "$tmp"' EXIT
trap 'exit 1' HUP INT TERM PIPE
(set -C && : >"$tmp") || fail 'no file can be made in its directory'
echo send
if [ -n "$large" ]; then
    # Hashed on the way: reading it again would take as long as the transfer.
    exec 4>&1
    got=$({ tee -- "$tmp" || echo 'fail its content cannot be written' >&4; } | hash)
    exec 4>&-
    [ "$(wc -c <"$tmp")" -eq "$length" ] || [ "$got" != "$want" ] || fail 'its content cannot be written'
else
    cat >"$tmp" || fail 'its content cannot be written'
    got=$(hash <"$tmp")
fi
if [ "$got" != "$want" ]; then
    rm -f -- "$tmp"
    printf 'hash %s\n' "$got"
    exit 1
fi
own "$tmp" || fail 'its owner cannot be set'
chmod -- "${mode:-644}" "$tmp" || fail 'its mode cannot be set'
sync -- "$tmp" 2>/dev/null || sync
mv -f -- "$tmp" "$path" || fail 'it cannot be put in its place'
sync -- "$dir" 2>/dev/null || sync
echo done
