//! What a signature of a Nix store path is over, and who signed it.
//!
//! A path is signed by its fingerprint: name, hash of its archive, size, and what it refers to. Checking the Ed25519
//! signature itself is left to who has the primitive; this is the text it is over, and the keys by their names.

use super::artifact::{NIX32, StorePath};
use crate::base64;

/// What is known of a path in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathFacts {
    /// The path.
    pub path: StorePath,
    /// The hash of its archive.
    pub nar_sha256: [u8; 32],
    /// The size of its archive.
    pub nar_size: u64,
    /// What it refers to.
    pub references: Vec<StorePath>,
}

impl PathFacts {
    /// Returns what a signature is over.
    pub fn fingerprint(&self) -> String {
        let mut references: Vec<&str> = self.references.iter().map(StorePath::as_str).collect();
        references.sort_unstable();
        let hash = to_nix32(&self.nar_sha256);
        format!("1;{};sha256:{hash};{};{}", self.path.as_str(), self.nar_size, references.join(","))
    }

    /// Returns the hash of its archive as specs write it.
    pub fn sri(&self) -> String {
        format!("sha256-{}", base64::encode(&self.nar_sha256))
    }
}

/// A key or a signature with the name of its key: `NAME:BASE64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<const N: usize> {
    /// The name of the key.
    pub name: String,
    /// Its bytes.
    pub bytes: [u8; N],
}

/// A public key.
pub type PublicKey = Named<32>;
/// A signature.
pub type Signature = Named<64>;

impl<const N: usize> Named<N> {
    /// Returns what `text` names.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, bytes) = text.split_once(':')?;
        let bytes = base64::decode(bytes)?.try_into().ok()?;
        (!name.is_empty()).then(|| Self { name: name.to_owned(), bytes })
    }
}

/// Returns `bytes` in Nix's base 32: five bits a letter, from the last byte to the first.
pub fn to_nix32(bytes: &[u8]) -> String {
    let letters = (bytes.len() * 8).div_ceil(5);
    let letter = |index: usize| {
        let bit = index * 5;
        let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or_default());
        let both = byte(bit / 8) | byte(bit / 8 + 1) << 8;
        char::from(NIX32[usize::from(both >> (bit % 8) & 31)])
    };
    (0..letters).rev().map(letter).collect()
}

/// Returns the bytes that `text` in Nix's base 32 names, if it is that of so many.
pub fn from_nix32(text: &str, length: usize) -> Option<Vec<u8>> {
    if text.len() != (length * 8).div_ceil(5) {
        return None;
    }
    let mut bytes = vec![0_u8; length];
    for (index, letter) in text.bytes().rev().enumerate() {
        let digit = u16::try_from(NIX32.iter().position(|known| *known == letter)?).ok()?;
        let (at, shift) = (index * 5 / 8, index * 5 % 8);
        let wide = digit << shift;
        *bytes.get_mut(at)? |= u8::try_from(wide & 0xff).ok()?;
        match bytes.get_mut(at + 1) {
            Some(next) => *next |= u8::try_from(wide >> 8).ok()?,
            None if wide >> 8 != 0 => return None,
            None => {}
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 5: hash, fingerprint, key and signature of the vector have their forms.
    #[test]
    fn the_vector_has_its_fingerprint() {
        let nix32 = "04zwf782yjwnh3q6hz5izfd6jyip8kgw6g6yj43fiqhbyhdd0dqw";
        let nar_sha256: [u8; 32] = from_nix32(nix32, 32).unwrap().try_into().unwrap();
        assert_eq!(to_nix32(&nar_sha256), nix32);
        let path = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";
        let facts = PathFacts {
            path: StorePath::parse(path).unwrap(),
            nar_sha256,
            nar_size: 120,
            references: vec![],
        };
        assert_eq!(facts.fingerprint(), format!("1;{path};sha256:{nix32};120;"));
        assert_eq!(facts.sri(), "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=");
        let key = PublicKey::parse("lab-1:qLXNZPyiOYzbXmppg7/qZo5FmA7UUQ5X3WTfZeR62Cw=").unwrap();
        assert_eq!(key.name, "lab-1");
        let signature =
            "KLBHcyr4vMS3TaKVz9gNWNdxJXrLWwEOjD4IMeH+3jEzEpSOFbC36AiDkbbq9FWF1iwlhIAae/X5t7T8NoJVDw==";
        assert!(Signature::parse(&format!("lab-1:{signature}")).is_some());
        for bad in ["", "lab-1", ":qLXN", "lab-1:qLXN", "lab-1:"] {
            assert_eq!(PublicKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn base_32_goes_both_ways() {
        for length in [0, 1, 4, 20, 32] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + 11) as u8).collect();
            assert_eq!(from_nix32(&to_nix32(&bytes), bytes.len()), Some(bytes));
        }
        assert_eq!(from_nix32("zz", 1), None, "bits beyond the last byte");
        assert_eq!(from_nix32("e0", 1), None, "no such letter");
    }
}
