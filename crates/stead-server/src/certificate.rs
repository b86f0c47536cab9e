//! The server's certificate: made once, reused, pinned by clients.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, crypto};
use sha2::{Digest, Sha256};
use stead_model::node::wire::Pins;
use stead_model::plan;
use stead_model::time::Timestamp;

/// How long a new certificate is valid, in years.
const YEARS: i32 = 10;

/// A certificate or key is a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{} holds no {what} in PEM", path.display())]
    NotPem {
        /// What it should hold.
        what: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// The key is not that of the certificate, or is of an unknown kind.
    #[error("the key {} cannot be used with the certificate {}", key.display(), certificate.display())]
    Unusable {
        /// The key.
        key: PathBuf,
        /// The certificate.
        certificate: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// A new one could not be made.
    #[error("failed to make a certificate")]
    Make(#[source] rcgen::Error),
}

/// A certificate with its key, ready to serve with.
#[derive(Clone, Debug)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    pins: Pins,
}

/// For whom a new certificate is.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The name of this machine.
    pub(crate) hostname: String,
    /// Its addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// From when it is valid.
    pub(crate) now: Timestamp,
}

impl Certificate {
    /// Returns the certificate in these files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
        let chain = chain
            .ok()
            .filter(|chain| !chain.is_empty())
            .ok_or_else(|| CertificateError::NotPem { what: "certificate", path: certificate.to_owned() })?;
        let private = PrivateKeyDer::from_pem_slice(&read(key)?)
            .map_err(|_| CertificateError::NotPem { what: "private key", path: key.to_owned() })?;
        let unusable = |source| CertificateError::Unusable {
            key: key.to_owned(),
            certificate: certificate.to_owned(),
            source,
        };
        let fingerprint = fingerprint(chain.first().map_or(&[][..], |first| first.as_ref()));
        let certified =
            CertifiedKey::from_der(chain, private, &crypto::ring::default_provider()).map_err(unusable)?;
        let spki = certified.key.public_key();
        let spki_pin = format!("sha256:{}", plan::Digest::of(spki.as_deref().unwrap_or_default()));
        let pins = Pins { fingerprints: vec![fingerprint], spki_pin };
        Ok(Self { key: Arc::new(certified), pins })
    }

    /// Returns the certificate in `directory`, a new one if there is none.
    pub(crate) fn ensure(directory: &Path, subject: &Subject) -> Result<Self, CertificateError> {
        let (certificate, key) = files(directory);
        if certificate.exists() && key.exists() {
            return Self::load(&certificate, &key);
        }
        Self::replace(directory, subject)
    }

    /// Returns a new certificate, which is then the one in `directory`.
    pub(crate) fn replace(directory: &Path, subject: &Subject) -> Result<Self, CertificateError> {
        let (certificate, key) = files(directory);
        let (certificate_pem, key_pem) = make(subject).map_err(CertificateError::Make)?;
        // Without its key a certificate counts as missing, so that a crash in between is made good by the next start.
        remove(&certificate)?;
        write(&key, key_pem.as_bytes(), 0o600)?;
        write(&certificate, certificate_pem.as_bytes(), 0o644)?;
        Self::load(&certificate, &key)
    }

    /// Returns how clients know it.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns SHA-256 of it, `AB:CD:…`.
    pub fn fingerprint(&self) -> &str {
        self.pins.fingerprints.first().map_or("", String::as_str)
    }

    /// Returns how connections are made with it: TLS 1.2 or newer, nothing kept between them.
    pub(crate) fn server_config(&self) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let resolver = rustls::sign::SingleCertAndKey::from(Arc::clone(&self.key));
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Agents keep their connection; what is remembered of old ones would be memory for nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

fn files(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("cert.pem"), directory.join("key.pem"))
}

/// Returns SHA-256 of a certificate as people write it.
fn fingerprint(der: &[u8]) -> String {
    let bytes: Vec<String> = Sha256::digest(der).iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}

fn make(subject: &Subject) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut names = vec!["localhost".to_owned()];
    if subject.hostname != "localhost" && !subject.hostname.is_empty() {
        names.insert(0, subject.hostname.clone());
    }
    let mut params = CertificateParams::new(names)?;
    params.subject_alt_names.extend(subject.addresses.iter().copied().map(SanType::IpAddress));
    params.distinguished_name.push(DnType::CommonName, "stead server");
    let (year, month, day) = date(subject.now);
    params.not_before = date_time_ymd(year, month, day);
    params.not_after = date_time_ymd(year + YEARS, month, day);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Returns year, month and day, none later than every month has.
fn date(now: Timestamp) -> (i32, u8, u8) {
    let text = now.to_string();
    let mut numbers = text.split(['-', 'T']);
    let mut next = |default: u16| numbers.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (year, month, day) = (next(2000), next(1), next(1));
    (i32::from(year), u8::try_from(month).unwrap_or(1), u8::try_from(day.min(28)).unwrap_or(1))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CertificateError {
    let path = path.to_owned();
    move |source| CertificateError::File { what, path, source }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed("read", path))?;
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

fn remove(path: &Path) -> Result<(), CertificateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a file whole: to a temporary one, which is renamed when it is on disk.
fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), CertificateError> {
    let new = path.with_extension("new");
    remove(&new)?;
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(&new);
    let mut file = opened.map_err(failed("write", &new))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed("write", &new))?;
    fs::rename(&new, path).map_err(failed("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn subject() -> Subject {
        Subject {
            hostname: "lab".to_owned(),
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            now: Timestamp::parse("2026-02-28T01:02:03Z").unwrap(),
        }
    }

    #[test]
    fn a_certificate_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = Certificate::ensure(dir.path(), &subject()).unwrap();
        let again = Certificate::ensure(dir.path(), &subject()).unwrap();
        assert_eq!(first.pins(), again.pins());
        assert_eq!(first.fingerprint().len(), 95);
        assert!(stead_model::node::wire::is_digest(&first.pins().spki_pin));
        let key = dir.path().join("key.pem");
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let other = Certificate::replace(dir.path(), &subject()).unwrap();
        assert_ne!(first.fingerprint(), other.fingerprint());
        assert!(first.server_config().is_ok());
    }

    #[test]
    fn files_that_are_no_certificate_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = files(dir.path());
        Certificate::ensure(dir.path(), &subject()).unwrap();
        fs::write(&certificate, "x").unwrap();
        assert!(matches!(
            Certificate::load(&certificate, &key),
            Err(CertificateError::NotPem { what: "certificate", .. })
        ));
    }
}
