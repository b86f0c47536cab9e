//! Somebody's own identity, in memory and on disk.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use stead_model::base64;
use stead_model::fleet::peer::Peer;
use zeroize::Zeroizing;

use super::{Admitted, IdentityError, Member};

/// The file of an identity: key, certificate, authority and masters, replaced as a whole.
const FILE: &str = "identity.json";
/// An identity is a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// A new key, and the request for its certificate.
pub struct Request {
    key: KeyPair,
    der: Vec<u8>,
}

impl Request {
    /// Returns a new key for somebody who would like to be called `name`.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let der = params.serialize_request(&key).map_err(IdentityError::Make)?.der().to_vec();
        Ok(Self { key, der })
    }

    /// Returns the request, in DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub(super) fn key(&self) -> &KeyPair {
        &self.key
    }

    /// Returns the identity that the answer to the request makes.
    pub fn admitted(self, admitted: &Admitted, masters: Vec<String>) -> Result<Identity, IdentityError> {
        let member = Member::read(&admitted.certificate)?;
        Ok(Identity {
            member,
            key: Zeroizing::new(self.key.serialize_der()),
            certificate: CertificateDer::from(admitted.certificate.clone()),
            authority: CertificateDer::from(admitted.authority.clone()),
            masters,
        })
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// Somebody's key with its certificate, the authority that masters are checked against, and where masters are.
#[derive(Clone)]
pub struct Identity {
    pub(super) member: Member,
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) authority: CertificateDer<'static>,
    /// Addresses of masters, `host:port`.
    pub masters: Vec<String>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Identity");
        shown.field("member", &self.member).field("masters", &self.masters).finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// For people; the certificate is what counts.
    fleet: String,
    masters: Vec<String>,
    certificate: String,
    authority: String,
    key: String,
}

impl Identity {
    /// Returns who this is.
    pub fn peer(&self) -> &Peer {
        &self.member.peer
    }

    /// Returns what the certificate tells.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the identity in `directory`; none if there is none.
    pub fn load(directory: &Path) -> Result<Option<Self>, IdentityError> {
        let path = directory.join(FILE);
        let mut text = Zeroizing::new(String::new());
        match File::open(&path) {
            Ok(file) => file.take(LONGEST).read_to_string(&mut text).map_err(failed("read", &path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let bad = || {
            IdentityError::refused(
                "identity",
                format!("{} is not an identity; remove it and join anew", path.display()),
            )
        };
        let written: Written = serde_json::from_str(&text).map_err(|_| bad())?;
        let certificate = base64::decode(&written.certificate).ok_or_else(bad)?;
        Ok(Some(Self {
            member: Member::read(&certificate)?,
            key: Zeroizing::new(base64::decode(&written.key).ok_or_else(bad)?),
            certificate: certificate.into(),
            authority: base64::decode(&written.authority).ok_or_else(bad)?.into(),
            masters: written.masters,
        }))
    }

    /// Keeps the identity in `directory`, which only its owner can enter; the old one stays until the new one is whole.
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("make", directory))?;
        let written = Written {
            fleet: self.member.peer.fleet.clone(),
            masters: self.masters.clone(),
            certificate: base64::encode(&self.certificate),
            authority: base64::encode(&self.authority),
            key: base64::encode(&self.key),
        };
        let text = Zeroizing::new(serde_json::to_string(&written).unwrap_or_default());
        let (path, new) = (directory.join(FILE), directory.join("identity.new"));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &new)(error));
            }
            Ok(()) | Err(_) => {}
        }
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let mut file = opened.map_err(failed("write", &new))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed("write", &new))?;
        fs::rename(&new, &path).map_err(failed("write", &path))?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("write", directory))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path: PathBuf = path.to_owned();
    move |source| IdentityError::File { what, path, source }
}
