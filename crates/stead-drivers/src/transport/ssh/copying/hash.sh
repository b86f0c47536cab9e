# Makes `hash`, which prints the SHA-256 of its input, for about so many bytes; calls `fail` where nothing can.
make_hash() {
    # openssl is five times faster where it is, and slower to start.
    if [ "$1" -gt 4194304 ] && command -v openssl >/dev/null 2>&1; then
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
}
