//! Signatures of bundles: SSHSIG over the bytes of `hashes.txt`, as `ssh-keygen -Y` makes and checks them.
//!
//! The hashes cover every file, so their signature vouches for the whole bundle. A key is a file without passphrase, or
//! one that ssh-agent holds; this module asks for no passphrase and prints nothing of a key but its fingerprint.

mod agent;
mod allowed;

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use signature::Signer as _;
use ssh_key::public::KeyData;
use ssh_key::{Algorithm, HashAlg, LineEnding, PrivateKey, PublicKey, SshSig};

use crate::directory::replace_file;
use crate::error::RecordError;
use crate::layout::{HASHES, SIGNATURE};
use crate::open_file::open_regular;

pub use agent::AgentError;
pub use allowed::{AllowedSigners, SignerProblem, SignersError};

/// What signatures of bundles are for; one made for something else is not valid here.
pub const NAMESPACE: &str = "stead-bundle";
/// The first line of a private key in OpenSSH's form.
const PRIVATE: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
/// No key file is longer.
const LONGEST_KEY: u64 = 64 << 10;

/// What is known of a bundle's signature; null is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// Whether there is one.
    pub present: bool,
    /// Whether it fits `hashes.txt`.
    pub valid: Option<bool>,
    /// Whether its signer is one of those allowed.
    pub trusted: Option<bool>,
    /// The signer's key.
    pub fingerprint: Option<String>,
}

/// A signature checked against what it signs.
#[derive(Debug)]
pub(crate) enum Checked {
    /// It is none, or does not fit.
    Invalid(String),
    /// It fits and was made by this key.
    By(KeyData),
}

impl Checked {
    /// Returns what `signature`, a file's content, says about `hashes`.
    pub(crate) fn of(signature: &[u8], hashes: &[u8]) -> Self {
        let signature = match SshSig::from_pem(signature) {
            Ok(signature) => signature,
            Err(_) => return Self::Invalid("it is not an armoured SSH signature".to_owned()),
        };
        if signature.namespace() != NAMESPACE {
            let made_for = signature.namespace().escape_debug();
            return Self::Invalid(format!("it was made for `{made_for}`, not for `{NAMESPACE}`"));
        }
        if matches!(signature.signature().algorithm(), Algorithm::Rsa { hash: None }) {
            return Self::Invalid("it was made with SHA-1".to_owned());
        }
        let key = signature.public_key().clone();
        match PublicKey::from(key.clone()).verify(NAMESPACE, hashes, &signature) {
            Ok(()) => Self::By(key),
            Err(_) => Self::Invalid(format!("it does not fit {HASHES}")),
        }
    }

    /// Returns what is known without asking who may sign.
    pub(crate) fn to_signature(&self) -> Signature {
        match self {
            Self::Invalid(_) => Signature { present: true, valid: Some(false), ..Signature::default() },
            Self::By(key) => Signature {
                present: true,
                valid: Some(true),
                trusted: None,
                fingerprint: Some(key.fingerprint(HashAlg::Sha256).to_string()),
            },
        }
    }
}

/// A key to sign with.
pub enum SigningKey {
    /// From a file.
    File(Box<PrivateKey>),
    /// Held by ssh-agent.
    Agent {
        /// Its public half.
        public: Box<PublicKey>,
        /// Where the agent listens.
        socket: PathBuf,
    },
}

/// Nothing of the key but what everybody may know.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.fingerprint()).finish()
    }
}

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The file is no key.
    #[error("{path} is neither an OpenSSH private key nor a public key", path = path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    /// The key needs a passphrase.
    #[error("{path} has a passphrase; add it to ssh-agent and name its `.pub` file instead", path = path.display())]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// The key is of another kind.
    #[error("{path} is a key of kind {kind}; bundles are signed with ssh-ed25519", path = path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// Its kind.
        kind: String,
    },
    /// A public key was named and no agent is there.
    #[error("{path} is a public key, and there is no ssh-agent: SSH_AUTH_SOCK is not set", path = path.display())]
    NoAgent {
        /// The file.
        path: PathBuf,
    },
    /// The agent does not hold the key.
    #[error("ssh-agent does not hold the key of {path}; `ssh-add` adds it", path = path.display())]
    NotHeld {
        /// The file.
        path: PathBuf,
    },
    /// The agent did not do it.
    #[error("ssh-agent did not sign")]
    Agent(#[from] AgentError),
    /// There is nothing to sign.
    #[error("{path} has no seal to sign", path = path.display())]
    Unsealed {
        /// The bundle.
        path: PathBuf,
    },
    /// The key does not work.
    #[error("the key cannot sign")]
    Key(#[source] ssh_key::Error),
    /// A file could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl SigningKey {
    /// Returns the key in the file at `path`: a private key without passphrase, or the public half of a key that the
    /// agent listening at `agent` holds.
    pub fn load(path: &Path, agent: Option<&Path>) -> Result<Self, SignError> {
        let mut text = String::new();
        let read = open_regular(path).and_then(|file| file.take(LONGEST_KEY).read_to_string(&mut text));
        let not_a_key = || SignError::NotAKey { path: path.to_owned() };
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(not_a_key()),
            read => read.map_err(RecordError::of("read key", path))?,
        };
        if text.trim_start().starts_with(PRIVATE) {
            let key = PrivateKey::from_openssh(text.trim_start()).map_err(|_| not_a_key())?;
            expect_ed25519(&key.algorithm(), path)?;
            if key.is_encrypted() {
                return Err(SignError::Encrypted { path: path.to_owned() });
            }
            return Ok(Self::File(Box::new(key)));
        }
        let public = PublicKey::from_openssh(text.trim()).map_err(|_| not_a_key())?;
        expect_ed25519(&public.algorithm(), path)?;
        let socket = agent.ok_or_else(|| SignError::NoAgent { path: path.to_owned() })?;
        if !agent::holds(socket, &public)? {
            return Err(SignError::NotHeld { path: path.to_owned() });
        }
        Ok(Self::Agent { public: Box::new(public), socket: socket.to_owned() })
    }

    /// Returns the fingerprint of the key, as `ssh-keygen -l` shows it.
    pub fn fingerprint(&self) -> String {
        let public = match self {
            Self::File(key) => key.public_key(),
            Self::Agent { public, .. } => public,
        };
        public.fingerprint(HashAlg::Sha256).to_string()
    }

    /// Returns the bare signature of `message`, for forms that say themselves what is signed.
    pub(crate) fn sign_plainly(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let signature = match self {
            Self::File(key) => key.try_sign(message).map_err(|_| SignError::Key(ssh_key::Error::Crypto))?,
            Self::Agent { public, socket } => agent::sign(socket, public, message)?,
        };
        Ok(signature.as_bytes().to_vec())
    }

    fn sign(&self, message: &[u8]) -> Result<SshSig, SignError> {
        match self {
            Self::File(key) => key.sign(NAMESPACE, HashAlg::Sha512, message).map_err(SignError::Key),
            Self::Agent { public, socket } => {
                let to_sign =
                    SshSig::signed_data(NAMESPACE, HashAlg::Sha512, message).map_err(SignError::Key)?;
                let signature = agent::sign(socket, public, &to_sign)?;
                SshSig::new(public.key_data().clone(), NAMESPACE, HashAlg::Sha512, signature)
                    .map_err(SignError::Key)
            }
        }
    }
}

fn expect_ed25519(kind: &Algorithm, path: &Path) -> Result<(), SignError> {
    if *kind == Algorithm::Ed25519 {
        return Ok(());
    }
    Err(SignError::OtherKind { path: path.to_owned(), kind: kind.as_str().to_owned() })
}

/// Signs the sealed bundle at `bundle` with `key`: writes `hashes.txt.sig`. Signing again replaces the signature.
pub fn sign(bundle: &Path, key: &SigningKey) -> Result<(), SignError> {
    let path = bundle.join(HASHES);
    let hashes = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SignError::Unsealed { path: bundle.to_owned() });
        }
        read => read.map_err(RecordError::of("read", &path))?,
    };
    let text = key.sign(&hashes)?.to_pem(LineEnding::LF).map_err(SignError::Key)?;
    replace_file(bundle, SIGNATURE, &|out| out.write_all(text.as_bytes()))?;
    Ok(())
}
