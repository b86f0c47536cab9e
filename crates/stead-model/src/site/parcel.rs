//! What one level hands to the level below it: a site of its own, and who may log in to what it makes.
//!
//! It holds keys, so it travels on standard input only and is never shown. What it holds is decided by
//! `stead-engine`; here is its form. Names of files are checked where it is read: nothing is written outside a site.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{FileKind, Site, SiteFile};
use crate::id::SiteKey;

/// The largest parcel that is read.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// A site for the level below.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parcel {
    /// 1.
    pub schema: u32,
    /// The manifest it is for.
    pub manifest: SiteKey,
    /// The files by their path below the site.
    pub files: BTreeMap<String, String>,
    /// Public keys of everybody above.
    pub authorized_keys: Vec<String>,
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel")
            .field("manifest", &self.manifest)
            .field("files", &self.files.keys())
            .finish_non_exhaustive()
    }
}

/// Why bytes are no parcel. None of its content is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParcelError {
    /// There are too many of them.
    #[error("the parcel has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// They are something else.
    #[error("this is not a parcel (line {line}, column {column})")]
    Malformed {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// Another version made it.
    #[error("the parcel has schema {0}; this version reads 1")]
    Schema(u32),
    /// A file is not one of a site.
    #[error("`{0}` is not a file of a site")]
    Path(String),
    /// A public key would be more than one line.
    #[error("a public key in the parcel is not one line")]
    Key,
}

impl Parcel {
    /// Returns the parcel's bytes, which are as secret as what it holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a parcel is always JSON")
    }

    /// Returns the parcel that `bytes` are.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParcelError> {
        if bytes.len() > MAX_BYTES {
            return Err(ParcelError::TooLarge);
        }
        let parcel: Self = serde_json::from_slice(bytes)
            .map_err(|error| ParcelError::Malformed { line: error.line(), column: error.column() })?;
        parcel.check()?;
        Ok(parcel)
    }

    /// Whether it may be unpacked.
    ///
    /// # Errors
    /// If not, why.
    pub fn check(&self) -> Result<(), ParcelError> {
        if self.schema != 1 {
            return Err(ParcelError::Schema(self.schema));
        }
        if let Some(path) = self.files.keys().find(|path| FileKind::of_path(path).is_none()) {
            return Err(ParcelError::Path(path.clone()));
        }
        if self.authorized_keys.iter().any(|key| key.is_empty() || key.contains(['\n', '\r', '\0'])) {
            return Err(ParcelError::Key);
        }
        Ok(())
    }

    /// Returns the name of the site it is of.
    pub fn site_name(&self) -> SiteKey {
        self.to_site().settings.value.name
    }

    /// Returns the site that the files make.
    pub fn to_site(&self) -> Site {
        let file = |(path, content): (&String, &String)| {
            let (kind, stem) = FileKind::of_path(path)?;
            let content = Ok(content.clone().into_bytes());
            Some(SiteFile { kind, stem: stem.to_owned(), name: path.clone(), content })
        };
        Site::read(self.files.iter().filter_map(file).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(path: &str) -> Parcel {
        let files = BTreeMap::from([(path.to_owned(), "x-secret".to_owned())]);
        Parcel { schema: 1, manifest: SiteKey::parse("m").unwrap(), files, authorized_keys: vec!["k".into()] }
    }

    #[test]
    fn only_files_of_a_site_are_read() {
        for good in ["site.yaml", "secrets.yaml", "keyring.yaml", "specs/base.yaml", "hosts/quay.yaml"] {
            assert_eq!(Parcel::parse(&parcel(good).to_bytes()), Ok(parcel(good)), "{good}");
        }
        for bad in [
            "",
            "site.yml",
            "other.yaml",
            "../site.yaml",
            "specs/../x.yaml",
            "specs/a/b.yaml",
            "specs/.yaml",
            "/specs/a.yaml",
            "specs/a..b.yaml",
            "specs\\a.yaml",
            "elsewhere/a.yaml",
        ] {
            assert_eq!(
                Parcel::parse(&parcel(bad).to_bytes()),
                Err(ParcelError::Path(bad.to_owned())),
                "{bad}"
            );
        }
    }

    #[test]
    fn what_is_no_parcel_says_so_and_shows_nothing() {
        let mut other = parcel("site.yaml");
        other.schema = 2;
        assert_eq!(Parcel::parse(&other.to_bytes()), Err(ParcelError::Schema(2)));
        other = parcel("site.yaml");
        other.authorized_keys.push("a\nb".to_owned());
        assert_eq!(Parcel::parse(&other.to_bytes()), Err(ParcelError::Key));
        let error = Parcel::parse(b"{\"schema\": \"hunter2\"}").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(!format!("{:?}", parcel("secrets.yaml")).contains("x-secret"));
    }
}
