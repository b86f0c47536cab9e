# Takes the program from its input. Arguments: base directory, SHA-256, how it is packed.
base=$1 sha=$2 packing=$3
umask 077
place=$base/bin/$sha
fail() { printf 'STEAD-UPLOAD failed %s\n' "$1"; exit 1; }
mkdir -p "$place" 2>/dev/null || fail "$place cannot be made"
chmod 700 "$base/bin" "$place" 2>/dev/null
temporary=$place/.stead.$$
trap 'rm -f "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
case $packing in
  zstd) zstd -dcq > "$temporary" 2>/dev/null ;;
  gzip) gzip -dc > "$temporary" 2>/dev/null ;;
  *) cat > "$temporary" 2>/dev/null ;;
esac || fail "$temporary cannot be written: the disk may be full"
found=$({ sha256sum < "$temporary" || shasum -a 256 < "$temporary" || openssl dgst -sha256 -r < "$temporary"; } 2>/dev/null)
[ "${found%% *}" = "$sha" ] || fail "SHA-256 ${found%% *} arrived, $sha was sent"
chmod 700 "$temporary" || fail "$temporary: its mode cannot be set"
sync "$temporary" 2>/dev/null || sync
mv -f "$temporary" "$place/stead" || fail "$place/stead cannot be replaced"
rm -f "$place/stamp"
printf 'STEAD-UPLOAD done %s\n' "$place/stead"
