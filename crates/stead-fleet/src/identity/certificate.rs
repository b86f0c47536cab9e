//! Makes and reads certificates. Pure but for randomness: times are passed in.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKey,
    PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use stead_model::fleet::peer::{Peer, Role};
use stead_model::token::SigningKey;
use x509_parser::extensions::GeneralName;
use zeroize::Zeroizing;

use super::{Founding, IdentityError};

/// How long a certificate holds: 90 days.
pub const LIFETIME: Duration = Duration::from_secs(90 * DAY);
/// How long the authority's own certificate holds: 20 years.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(20 * 365 * DAY);
/// A certificate holds from this long ago, for clocks that are behind.
const SLACK: Duration = Duration::from_secs(300);
const DAY: u64 = 24 * 60 * 60;
/// The largest request for a certificate that is looked at.
const LONGEST_REQUEST: usize = 16 << 10;

/// A point on the curve P-256: one byte, and two numbers of 32.
const POINT: usize = 65;

/// Somebody of the fleet as a certificate tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub peer: Peer,
    /// The certificate's serial number, in hex.
    pub serial: String,
    /// The token it goes back to.
    pub jti: String,
    /// From when it holds, in seconds since 1970.
    pub not_before: i64,
    /// Until when it holds, in seconds since 1970.
    pub not_after: i64,
}

impl Member {
    /// Returns what a certificate tells, which proves nothing unless the authority's signature was checked.
    pub fn read(der: &[u8]) -> Result<Self, IdentityError> {
        let bad = |why: &str| IdentityError::refused("bad-certificate", format!("the certificate {why}"));
        let (rest, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|_| bad("cannot be read"))?;
        if !rest.is_empty() {
            return Err(bad("has something behind it"));
        }
        let names = certificate.subject_alternative_name().map_err(|_| bad("has its names twice"))?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let [GeneralName::URI(uri)] = names else { return Err(bad("does not name one member of a fleet")) };
        let peer = Peer::parse(uri).map_err(|_| bad("does not name a member of a fleet"))?;
        let subject = certificate.subject();
        let jti = subject.iter_organizational_unit().next().and_then(|unit| unit.as_str().ok());
        Ok(Self {
            peer,
            serial: hex(certificate.raw_serial()),
            jti: jti.unwrap_or_default().to_owned(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// Whether half of its time is over at `now`, in seconds since 1970.
    pub fn wants_renewal(&self, now: i64) -> bool {
        let life = self.not_after.saturating_sub(self.not_before);
        now >= self.not_before.saturating_add(life / 2)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns random bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, IdentityError> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut()).map_err(|error| {
        IdentityError::refused("identity", format!("no randomness is to be had: {error}"))
    })?;
    Ok(bytes)
}

fn serial() -> Result<SerialNumber, IdentityError> {
    let mut bytes = *random::<16>()?;
    // Positive, and of one length.
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(SerialNumber::from(bytes.to_vec()))
}

fn hold(params: &mut CertificateParams, now: i64, lifetime: Duration) {
    let epoch = date_time_ymd(1970, 1, 1);
    let now = Duration::from_secs(now.max(0).unsigned_abs());
    params.not_before = epoch + now.saturating_sub(SLACK);
    params.not_after = epoch + now + lifetime;
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// Returns what a new fleet with this name begins with.
pub(super) fn found(fleet: String, now: i64) -> Result<Founding, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Make)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("stead fleet {fleet}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial()?);
    hold(&mut params, now, AUTHORITY_LIFETIME);
    let certificate = params.self_signed(&key).map_err(IdentityError::Make)?;
    Ok(Founding {
        fleet,
        certificate: certificate.der().to_vec(),
        key: Zeroizing::new(key.serialize_der()),
        join_key: SigningKey::from_bytes(*random::<32>()?),
    })
}

/// Returns what signs certificates.
pub(super) fn issuer(founding: &Founding) -> Result<Issuer<'static, KeyPair>, IdentityError> {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(founding.key.as_slice());
    let key =
        KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Make)?;
    let certificate = CertificateDer::from(founding.certificate.as_slice());
    Issuer::from_ca_cert_der(&certificate, key).map_err(IdentityError::Make)
}

/// What a request for a certificate says: a key, and a wish that counts for nothing by itself.
pub(super) struct Asked {
    /// The key, which the asker has proved to hold.
    pub(super) key: PublicKey,
    /// The name it would like.
    pub(super) name: Option<String>,
}

/// Reads a request for a certificate.
pub(super) fn read_request(csr: &[u8]) -> Result<Asked, IdentityError> {
    let bad =
        |why: &str| IdentityError::refused("bad-request", format!("the request for a certificate {why}"));
    if csr.len() > LONGEST_REQUEST {
        return Err(bad("is too long"));
    }
    let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(csr))
        .map_err(|_| bad("cannot be read, or its signature is wrong"))?;
    let key = &request.public_key;
    if key.algorithm() != &PKCS_ECDSA_P256_SHA256 || key.der_bytes().len() != POINT {
        return Err(bad("is not for a key on the curve P-256"));
    }
    let name = match request.params.distinguished_name.get(&DnType::CommonName) {
        Some(DnValue::Utf8String(name)) => Some(name.clone()),
        Some(DnValue::PrintableString(name)) => Some(name.as_str().to_owned()),
        Some(_) | None => None,
    };
    Ok(Asked { key: request.public_key, name })
}

/// Returns a certificate for `key` that says `peer`.
pub(super) fn issue(
    issuer: &Issuer<'static, KeyPair>,
    key: &impl PublicKeyData,
    peer: &Peer,
    jti: &str,
    now: i64,
) -> Result<CertificateDer<'static>, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&peer.name);
    params.distinguished_name.push(DnType::OrganizationalUnitName, jti);
    let uri = peer.to_string().try_into().map_err(IdentityError::Make)?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if peer.role == Role::Master {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.serial_number = Some(serial()?);
    params.use_authority_key_identifier_extension = true;
    hold(&mut params, now, LIFETIME);
    Ok(params.signed_by(key, issuer).map_err(IdentityError::Make)?.der().clone())
}
