//! Keys of a server, and the keys that open it.

use std::io;

use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::{Ed25519Keypair, KeypairData};
use russh::keys::{HashAlg, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// Options of a line that take away what this server does not have anyway. A line with any other opens nothing: what
/// it forbids could not be kept.
const HARMLESS: &[&str] = &[
    "no-pty",
    "pty",
    "no-agent-forwarding",
    "agent-forwarding",
    "no-x11-forwarding",
    "no-user-rc",
    "user-rc",
];

/// The key a server shows. No `Debug`: it is private.
pub(crate) struct ServerKey(PrivateKey);

impl ServerKey {
    /// Returns a new key.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub(crate) fn generate() -> io::Result<Self> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(io::Error::other)?;
        let pair = KeypairData::from(Ed25519Keypair::from_seed(&seed));
        PrivateKey::new(pair, "").map(Self).map_err(io::Error::other)
    }

    /// Returns the key that OpenSSH wrote as `text`, without a passphrase.
    ///
    /// # Errors
    /// If it is none. The error does not show it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let key = PrivateKey::from_openssh(text)
            .map_err(|error| format!("the host key cannot be read: {error}"))?;
        if key.is_encrypted() { Err("the host key has a passphrase".to_owned()) } else { Ok(Self(key)) }
    }

    /// Returns it as OpenSSH writes it.
    pub(crate) fn to_text(&self) -> io::Result<Zeroizing<String>> {
        self.0.to_openssh(LineEnding::LF).map_err(io::Error::other)
    }

    /// Returns type and base64 of its public half.
    pub(crate) fn public(&self) -> io::Result<String> {
        let line = self.0.public_key().to_openssh().map_err(io::Error::other)?;
        Ok(line.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" "))
    }

    pub(super) fn into_inner(self) -> PrivateKey {
        self.0
    }
}

/// Returns the key's fingerprint, as people compare it.
pub(super) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// Whether one of the lines lets `key` in.
pub(crate) fn opens(lines: &[String], key: &PublicKey) -> bool {
    lines.iter().filter_map(|line| key_of(line.trim())).any(|known| known.key_data() == key.key_data())
}

/// Returns the key of a line; none if it has no key, or an option that is not harmless.
fn key_of(line: &str) -> Option<PublicKey> {
    if let Ok(key) = PublicKey::from_openssh(line) {
        return Some(key);
    }
    // Harmless options have neither values nor blanks, so the first blank ends them.
    let (options, rest) = line.split_once([' ', '\t'])?;
    let is_harmless = |option: &str| HARMLESS.contains(&option.to_ascii_lowercase().as_str());
    options.split(',').all(is_harmless).then(|| PublicKey::from_openssh(rest.trim()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_text() {
        let key = ServerKey::generate().unwrap();
        let again = ServerKey::parse(&key.to_text().unwrap()).unwrap();
        assert_eq!(key.public().unwrap(), again.public().unwrap());
        assert!(key.public().unwrap().starts_with("ssh-ed25519 AAAA"));
        assert!(ServerKey::parse("-----BEGIN").is_err());
    }

    #[test]
    fn a_line_opens_unless_it_forbids_what_cannot_be_forbidden_here() {
        let key = ServerKey::generate().unwrap();
        let public = key.public().unwrap();
        let key = key.into_inner();
        let opens = |line: String| opens(&["# comment".to_owned(), line], key.public_key());
        assert!(opens(format!("{public} ann@desk")));
        assert!(opens(format!("no-pty,no-agent-forwarding {public}")));
        assert!(!opens(format!("command=\"true\" {public}")));
        assert!(!opens(format!("restrict {public}")));
        assert!(!opens(ServerKey::generate().unwrap().public().unwrap()));
        assert!(!opens("nonsense".to_owned()));
    }
}
