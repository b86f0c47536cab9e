# Prints a file; its hash goes to stderr as `hash SHA256`, a reason as `fail REASON`. Argument: path.
path=$1
fail() { printf 'fail %s\n' "$1" >&2; exit 1; }
[ -d "$path" ] && fail 'it is a directory'
[ -e "$path" ] || fail 'it is not there'
[ -f "$path" ] || fail 'it is no regular file'
[ -r "$path" ] || fail 'permission denied'
large=
[ "$(wc -c <"$path")" -gt 4194304 ] && large=1
if [ -n "$large" ] && command -v openssl >/dev/null 2>&1; then
    hash() { openssl dgst -sha256 -r | cut -c 1-64; }
elif command -v sha256sum >/dev/null 2>&1; then
    hash() { sha256sum | cut -c 1-64; }
elif command -v shasum >/dev/null 2>&1; then
    hash() { shasum -a 256 | cut -c 1-64; }
elif command -v openssl >/dev/null 2>&1; then
    hash() { openssl dgst -sha256 -r | cut -c 1-64; }
else
    fail 'none of sha256sum, shasum and openssl is there to check it'
fi
printf 'hash %s\n' "$(hash <"$path")" >&2 &
cat -- "$path" || fail 'its content cannot be read'
wait
