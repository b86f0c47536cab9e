# Prints a file; its hash goes to stderr as `hash SHA256`, a reason as `fail REASON`. Argument: path.
path=$1
fail() { printf 'fail %s\n' "$1" >&2; exit 1; }
[ -d "$path" ] && fail 'it is a directory'
[ -e "$path" ] || fail 'it is not there'
[ -f "$path" ] || fail 'it is no regular file'
[ -r "$path" ] || fail 'permission denied'
make_hash "$(wc -c <"$path")"
printf 'hash %s\n' "$(hash <"$path")" >&2 &
cat -- "$path" || fail 'its content cannot be read'
wait
