//! Base64 (RFC 4648, standard alphabet, padded): how bytes that are not text travel in parameters.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns `bytes` as base64.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let block =
            chunk.iter().fold(0u32, |block, byte| block << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let index = (block >> (18 - 6 * i)) & 63;
            text.push(if i <= chunk.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

/// Returns the bytes that `text` stands for, white space ignored; nothing if it is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut block, mut digits, mut padding) = (0u32, 0u32, 0u32);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        block = block << 6 | u32::from(digit);
        digits += 1;
        if digits == 4 {
            bytes.extend_from_slice(&block.to_be_bytes()[1..]);
            (block, digits) = (0, 0);
        }
    }
    match (digits, padding) {
        (0, 0) => {}
        (2, 2) if block & 15 == 0 => bytes.push((block >> 4) as u8),
        (3, 1) if block & 3 == 0 => bytes.extend_from_slice(&((block >> 2) as u16).to_be_bytes()),
        _ => return None,
    }
    Some(bytes)
}

/// The strict form for tokens: URL-safe alphabet, no padding, no white space, no bits left over.
pub mod url {
    /// Returns `bytes` as base64url.
    pub fn encode(bytes: &[u8]) -> String {
        let text = super::encode(bytes);
        text.trim_end_matches('=').replace('+', "-").replace('/', "_")
    }

    /// Returns the bytes that `text` stands for; nothing if [`encode`] would have written it in another way.
    pub fn decode(text: &str) -> Option<Vec<u8>> {
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            return None;
        }
        let padding = "=".repeat((4 - text.len() % 4) % 4);
        super::decode(&format!("{}{padding}", text.replace('-', "+").replace('_', "/")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_form_has_one_spelling() {
        assert_eq!(url::encode(&[0xfb, 0xff]), "-_8");
        assert_eq!(url::decode("-_8").unwrap(), [0xfb, 0xff]);
        for text in ["-_8=", "-_9", "+/8", "Zg\n", "Z", "Zh", "Zg==", "Zm9v Zg", "é"] {
            assert_eq!(url::decode(text), None, "{text}");
        }
    }

    #[test]
    fn the_vectors_of_the_standard_go_both_ways() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Z!==", "Zg==Zg==", "===="] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("Zm\n9v\n").unwrap(), b"foo");
    }
}
