//! Hooks of Git servers: a signed request that means "look now" and nothing else.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header that carries the signature.
pub const HEADER: &str = "X-Hub-Signature-256";

/// Whether `header` is the signature of `body` by `secret`: `sha256=` and the HMAC in hex, compared in constant time.
pub fn is_signed(secret: &[u8], body: &[u8], header: &str) -> bool {
    let Some(hex) = header.strip_prefix("sha256=") else { return false };
    let Some(given) = crate::plan::Digest::parse(hex) else { return false };
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(body);
    mac.verify_slice(&given.0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 7: the vector of section 5, and each flipped digit.
    #[test]
    fn the_vector_is_signed_and_nothing_near_it_is() {
        let (secret, body) = (b"s3cret-hook-key", br#"{"ref":"refs/heads/main"}"#);
        let good = "sha256=d63fd8813bffaa25c0628456e58cf73409501acf93c857de82029409be3ea833";
        assert!(is_signed(secret, body, good));
        for at in 0..good.len() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert!(!is_signed(secret, body, &String::from_utf8(bytes).unwrap()), "{at}");
        }
        assert!(!is_signed(b"other", body, good) && !is_signed(secret, b"{}", good));
        assert!(!is_signed(secret, body, "") && !is_signed(secret, body, &good[..good.len() - 1]));
    }
}
