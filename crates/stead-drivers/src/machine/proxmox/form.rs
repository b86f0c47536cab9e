//! Bodies and paths of requests.

use sha2::{Digest as _, Sha256};

/// Returns `text` percent-encoded: everything but letters, digits, `-`, `.`, `_` and `~`.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns fields as a form or a query has them.
pub(super) fn form(fields: &[(String, String)]) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    fields.collect::<Vec<_>>().join("&")
}

/// Returns the kind and the body of the upload of an ISO image called `name`.
pub(super) fn multipart(name: &str, content: &[u8]) -> (String, Vec<u8>) {
    let digest = Sha256::digest(content);
    // What bounds the parts is none of them: it is made of their hash.
    let bound: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!(
        "--{bound}\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n\
         --{bound}\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let mut body = head.into_bytes();
    body.extend_from_slice(content);
    body.extend_from_slice(format!("\r\n--{bound}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={bound}"), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_travel_byte_for_byte() {
        assert_eq!(encode("ssh-ed25519 AA+/= me@x\n"), "ssh-ed25519%20AA%2B%2F%3D%20me%40x%0A");
        let fields = [("a b".to_owned(), "1&2".to_owned()), ("c".to_owned(), String::new())];
        assert_eq!(form(&fields), "a%20b=1%262&c=");
    }

    #[test]
    fn an_upload_names_its_file_and_holds_its_bytes() {
        let (kind, body) = multipart("x.iso", b"\0\xff--");
        let bound = kind.split_once("boundary=").unwrap().1;
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("filename=\"x.iso\"") && text.ends_with(&format!("\r\n--{bound}--\r\n")));
        assert!(body.windows(4).any(|part| part == b"\0\xff--"));
    }
}
