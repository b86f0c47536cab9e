//! A key of one's own, for a cache that nobody else uses.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use ed25519_dalek::SigningKey;
use stead_model::base64;
use stead_model::fleet::nix_signature::Named;
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

/// Returns the public key, as Nix writes it, of the secret one in the file `path`, which is made unless it is there.
///
/// # Errors
/// If the file cannot be read or made, or holds something else.
pub fn ensure_key(path: &Path, name: &str) -> io::Result<String> {
    if !fs::exists(path)? {
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret).map_err(io::Error::other)?;
        let pair = Zeroizing::new(SigningKey::from_bytes(&secret).to_keypair_bytes());
        let directory = path.parent().unwrap_or(Path::new("."));
        // Nobody but this account may read it.
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(Zeroizing::new(format!("{name}:{}", base64::encode(&*pair))).as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
    }
    let text = Zeroizing::new(fs::read_to_string(path)?);
    let bad = || io::Error::other(format!("{} holds no key of Nix: remove it", path.display()));
    let pair = Named::<64>::parse(text.trim()).ok_or_else(bad)?;
    let public = pair.bytes.get(32..).ok_or_else(bad)?;
    Ok(format!("{}:{}", pair.name, base64::encode(public)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::publisher::cache::trusted;

    #[test]
    fn a_key_is_made_once_and_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let public = ensure_key(&path, "dev").unwrap();
        assert!(public.starts_with("dev:"), "{public}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ensure_key(&path, "dev").unwrap(), public);
        let both = trusted(std::slice::from_ref(&public), path.to_str()).unwrap();
        assert!(both.len() == 2 && both[0] == both[1], "{both:?}");
        fs::write(&path, "x").unwrap();
        assert!(ensure_key(&path, "dev").unwrap_err().to_string().contains("holds no key"));
    }
}
