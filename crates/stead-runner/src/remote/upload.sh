# Takes the program from its input, once it has said `send`; it says `done` at once if the program is there.
# Arguments: base directory, SHA-256, how it is packed.
base=$1 sha=$2 packing=$3
umask 077
place=$base/bin/$sha
fail() { printf 'STEAD-UPLOAD failed %s\n' "$1"; exit 1; }
mkdir -p "$place" 2>/dev/null || fail "$place cannot be made"
chmod 700 "$base/bin" "$place" 2>/dev/null
hash() { { sha256sum < "$1" || shasum -a 256 < "$1" || openssl dgst -sha256 -r < "$1"; } 2>/dev/null; }
# One at a time, if the machine can: the next one finds it there. One that hangs is not waited for long, for two at
# once do no harm.
if command -v flock >/dev/null 2>&1 && touch "$base/bin/.lock" 2>/dev/null; then
  exec 9>"$base/bin/.lock"
  tries=0
  until flock -n 9 2>/dev/null || [ $tries -ge 300 ]; do
    sleep 0.2 2>/dev/null || sleep 1
    tries=$((tries + 1))
  done
fi
# Of another mode it was not brought, and may be a second name of somebody's file: it is replaced, never changed.
mode=$(stat -c %a "$place/stead" 2>/dev/null)
if [ "${mode:-700}" = 700 ] && [ -f "$place/stead" ] && [ ! -L "$place/stead" ] && [ -O "$place/stead" ] && [ -x "$place/stead" ]; then
  found=$(hash "$place/stead")
  if [ "${found%% *}" = "$sha" ]; then
    printf 'STEAD-UPLOAD done %s\n' "$place/stead"
    exit 0
  fi
fi
printf 'STEAD-UPLOAD send %s\n' "$place/stead"
temporary=$place/.stead.$$
trap 'rm -f "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
case $packing in
  zstd) zstd -dcq > "$temporary" 2>/dev/null ;;
  gzip) gzip -dc > "$temporary" 2>/dev/null ;;
  *) cat > "$temporary" 2>/dev/null ;;
esac || fail "$temporary cannot be written: the disk may be full"
found=$(hash "$temporary")
[ "${found%% *}" = "$sha" ] || fail "SHA-256 ${found%% *} arrived, $sha was sent"
chmod 700 "$temporary" || fail "$temporary: its mode cannot be set"
sync "$temporary" 2>/dev/null || sync
mv -f "$temporary" "$place/stead" || fail "$place/stead cannot be replaced"
rm -f "$place/stamp"
printf 'STEAD-UPLOAD done %s\n' "$place/stead"
