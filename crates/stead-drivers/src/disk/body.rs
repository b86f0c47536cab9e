//! What is in a file, as data: short content whole, long content by size and hash.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::base64;

/// Content up to this size is kept whole: compared as bytes, shown as a diff, restored by an inverse.
pub(crate) const WHOLE: u64 = 1 << 20;

/// What is in a file. Two are equal if and only if the bytes are (for long content: their SHA-256).
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Body {
    /// In bytes.
    pub(crate) size: u64,
    /// The content, if it is short and UTF-8. Not base64 then, so that redaction finds secrets in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The content, if it is short and not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// SHA-256 of long content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    /// A file of this machine that holds these bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<PathBuf>,
}

/// Size only: content may be secret, and so may be the hash of a short one.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("size", &self.size).finish_non_exhaustive()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        // `source` says where the bytes are, not which they are.
        self.size == other.size
            && match (self.is_whole(), other.is_whole()) {
                (true, true) => (&self.text, &self.base64) == (&other.text, &other.base64),
                (true | false, false) | (false, true) => self.sha256() == other.sha256(),
            }
    }
}

impl Body {
    /// Returns the body of these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let size = bytes.len() as u64;
        if size > WHOLE {
            return Self { size, sha256: Some(hex(&Sha256::digest(bytes))), ..Self::default() };
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { size, text: Some(text.to_owned()), ..Self::default() },
            Err(_) => Self { size, base64: Some(base64::encode(bytes)), ..Self::default() },
        }
    }

    /// Returns the body of what `file` holds from its start.
    pub(crate) fn read(file: &mut File) -> io::Result<Self> {
        let mut head = Vec::new();
        file.by_ref().take(WHOLE + 1).read_to_end(&mut head)?;
        if head.len() as u64 <= WHOLE {
            return Ok(Self::new(&head));
        }
        file.seek(SeekFrom::Start(0))?;
        Self::hashed(file)
    }

    /// Returns the body of what `reader` gives, by hash alone.
    pub(crate) fn hashed(reader: &mut dyn Read) -> io::Result<Self> {
        let (size, sha256) = hash(reader)?;
        Ok(Self { size, sha256: Some(sha256), ..Self::default() })
    }

    /// Returns the body of `size` bytes with this hash.
    pub(crate) fn named(size: u64, sha256: &str) -> Self {
        Self { size, sha256: Some(sha256.to_owned()), ..Self::default() }
    }

    /// Returns this body with the file of this machine that holds its bytes.
    pub(crate) fn with_source(mut self, source: PathBuf) -> Self {
        self.source = Some(source);
        self
    }

    /// Whether the bytes are in it.
    pub(crate) fn is_whole(&self) -> bool {
        self.text.is_some() || self.base64.is_some()
    }

    /// Returns the bytes, if they are kept whole.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.text, &self.base64) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(text)) => base64::decode(text),
            (None, None) => None,
        }
    }

    /// Returns the text, if it is kept whole and is text.
    pub(crate) fn text(&self) -> Option<&str> {
        self.text.as_deref().filter(|text| !text.contains('\0'))
    }

    /// Returns the hash of the content.
    pub(crate) fn sha256(&self) -> String {
        match (&self.sha256, self.bytes()) {
            (Some(sha256), _) => sha256.clone(),
            (None, bytes) => hex(&Sha256::digest(bytes.unwrap_or_default())),
        }
    }

    /// Returns what a report shows of it: the size, and for what is not text the hash.
    pub(crate) fn summary(&self) -> Value {
        match self.text() {
            Some(_) => json!({"size": self.size}),
            None => json!({"size": self.size, "sha256": self.sha256()}),
        }
    }
}

/// Returns size and hash of everything `reader` gives.
pub(crate) fn hash(reader: &mut dyn Read) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let mut size = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((size, hex(&hasher.finalize()))),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                size += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
