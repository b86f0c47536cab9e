//! Whether the server at the other end is the one that is meant, decided in the TLS handshake.
//!
//! A certificate that is not pinned ends the handshake: nothing of a request, and so no token, is ever sent to it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use sha2::{Digest as _, Sha256};
use stead_model::node::wire::Pins;
use stead_model::plan::Digest;

use super::ClientError;
use crate::disk::body::hex;
use crate::http::client::{self, Roots};

/// Who a server has to be.
#[derive(Clone)]
pub(crate) enum Trust {
    /// One of these, by certificate or by key.
    Pinned(PinSet),
    /// One that these certificates vouch for.
    Authority(Vec<u8>),
    /// One that this machine's certificates vouch for.
    System,
    /// Anybody.
    Anybody,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned(pins) => f.debug_tuple("Pinned").field(pins).finish(),
            Self::Authority(_) => f.write_str("Authority"),
            Self::System => f.write_str("System"),
            Self::Anybody => f.write_str("Anybody"),
        }
    }
}

/// A SHA-256.
type Hash = [u8; 32];

/// The certificates and the key that a server may have.
#[derive(Clone, Debug)]
pub(crate) struct PinSet {
    certificates: Vec<Hash>,
    key: Option<Hash>,
}

impl PinSet {
    /// Returns what these pins say; none of them may be malformed, and one has to be there.
    pub(crate) fn parse(pins: &Pins) -> Result<Self, ClientError> {
        let bad = |text: &str| {
            ClientError::Invalid(format!(
                "`{}` is not a pin: expected SHA-256, as `AB:CD:…` of a certificate or as `sha256:…` of a key",
                text.escape_debug()
            ))
        };
        let certificate = |text: &String| read_fingerprint(text).ok_or_else(|| bad(text));
        let certificates = pins.fingerprints.iter().map(certificate).collect::<Result<Vec<_>, _>>()?;
        let key = match pins.spki_pin.as_str() {
            "" => None,
            text => Some(read_key_pin(text).ok_or_else(|| bad(text))?),
        };
        if certificates.is_empty() && key.is_none() {
            return Err(ClientError::Invalid("no pin is given".to_owned()));
        }
        Ok(Self { certificates, key })
    }

    /// Returns the pins as people compare them.
    pub(crate) fn shown(&self) -> Vec<String> {
        let key = self.key.as_ref().map(|key| format!("sha256:{}", hex(key)));
        self.certificates.iter().map(fingerprint).chain(key).collect()
    }

    fn accepts(&self, certificate: &Hash, key: &Hash) -> bool {
        self.certificates.contains(certificate) || self.key.as_ref() == Some(key)
    }
}

/// Returns the hash of `AB:CD:…`, or of plain hex digits.
fn read_fingerprint(text: &str) -> Option<Hash> {
    Digest::parse(&text.replace(':', "").to_ascii_lowercase()).map(|digest| digest.0)
}

fn read_key_pin(text: &str) -> Option<Hash> {
    Digest::parse(&text.strip_prefix("sha256:")?.to_ascii_lowercase()).map(|digest| digest.0)
}

/// Returns `AB:CD:…`.
fn fingerprint(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

/// The certificate a handshake showed, for who asks why it failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Option<Hash>>>);

impl Seen {
    fn note(&self, certificate: Hash) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(certificate);
    }

    /// Returns the fingerprint of the certificate that was refused.
    pub(crate) fn refused(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(fingerprint)
    }
}

impl Trust {
    /// Returns how TLS is spoken, and where the certificate of a refused server will be found.
    pub(crate) fn config(&self) -> Result<(ClientConfig, Seen), ClientError> {
        let seen = Seen::default();
        let pinned = |pins| {
            Arc::new(Pinned { pins, seen: seen.clone(), provider: provider() }) as Arc<dyn ServerCertVerifier>
        };
        let verifier = match self {
            Self::Authority(pem) => vouched(&Roots::These(pem.clone()), &seen)?,
            Self::System => vouched(&Roots::System, &seen)?,
            Self::Pinned(pins) => pinned(Some(pins.clone())),
            Self::Anybody => pinned(None),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| ClientError::Invalid(format!("no TLS: {error}")))?;
        let config = builder.dangerous().with_custom_certificate_verifier(verifier);
        Ok((config.with_no_client_auth(), seen))
    }

    /// Returns the pins, if it is pins that count.
    pub(crate) fn pins(&self) -> Option<&PinSet> {
        match self {
            Self::Pinned(pins) => Some(pins),
            Self::Authority(_) | Self::System | Self::Anybody => None,
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns who accepts certificates that `roots` vouch for.
fn vouched(roots: &Roots, seen: &Seen) -> Result<Arc<dyn ServerCertVerifier>, ClientError> {
    let store = client::store(roots).map_err(|error| ClientError::Invalid(error.message))?;
    if store.is_empty() {
        let why = match roots {
            Roots::System => {
                "this machine has no certificates that could vouch for a server (package ca-certificates), and none \
                 is pinned"
            }
            Roots::These(_) => "there is no certificate that could vouch for a server",
        };
        return Err(ClientError::Invalid(why.to_owned()));
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider()).build();
    let inner = inner.map_err(|error| ClientError::Invalid(format!("no TLS: {error}")))?;
    Ok(Arc::new(Vouched { inner, seen: seen.clone() }))
}

/// Accepts certificates that others vouch for, and notes the one that was shown: who refuses it may want to pin it.
#[derive(Debug)]
struct Vouched {
    inner: Arc<WebPkiServerVerifier>,
    seen: Seen,
}

impl ServerCertVerifier for Vouched {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.seen.note(Sha256::digest(certificate).into());
        self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts certificates that are pinned, whatever names and times they carry; without pins, all.
#[derive(Debug)]
struct Pinned {
    pins: Option<PinSet>,
    seen: Seen,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(pins) = &self.pins else { return Ok(ServerCertVerified::assertion()) };
        let seen = Sha256::digest(certificate).into();
        // Noted first: a certificate that cannot be read is refused as well.
        self.seen.note(seen);
        let key = Sha256::digest(ParsedCertificate::try_from(certificate)?.subject_public_key_info()).into();
        if pins.accepts(&seen, &key) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(fingerprints: &[&str], spki_pin: &str) -> Result<PinSet, ClientError> {
        let fingerprints = fingerprints.iter().map(|text| (*text).to_owned()).collect();
        PinSet::parse(&Pins { fingerprints, spki_pin: spki_pin.to_owned() })
    }

    #[test]
    fn pins_are_read_or_refused_and_one_has_to_be_there() {
        let colons = vec!["AB"; 32].join(":");
        let set = pins(&[&colons, &"cd".repeat(32)], &format!("sha256:{}", "ef".repeat(32))).unwrap();
        assert!(set.accepts(&[0xab; 32], &[0; 32]) && set.accepts(&[0xcd; 32], &[0; 32]));
        assert!(set.accepts(&[0; 32], &[0xef; 32]) && !set.accepts(&[0xef; 32], &[0xab; 32]));
        assert_eq!(set.shown()[0], colons);
        for (fingerprint, key) in [("AB:CD", ""), ("", "sha256:"), ("x", ""), ("", &"ab".repeat(32))] {
            let given: &[&str] = if fingerprint.is_empty() { &[] } else { &[fingerprint] };
            assert!(pins(given, key).is_err(), "{fingerprint} {key}");
        }
        assert!(pins(&[], "").is_err());
    }
}
