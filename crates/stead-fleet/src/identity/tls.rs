//! Certificates as connections need them: TLS 1.3 and nothing older, members of one fleet and nobody else.

use std::fmt;
use std::sync::Arc;

use rcgen::KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use stead_model::fleet::peer::Role;
use stead_model::plan::Digest;
use subtle::ConstantTimeEq;

use super::{Authority, Identity, IdentityError, Member};

/// What connections of fleets speak.
const PROTOCOL: &[u8] = b"stead-fleet/1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(IdentityError::Unusable)?;
    Ok(Arc::new(roots))
}

/// Returns a key with its certificates, ready to be shown.
pub(super) fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
) -> Result<CertifiedKey, IdentityError> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    CertifiedKey::from_der(chain, key, &provider()).map_err(IdentityError::Unusable)
}

/// Returns how a master takes visitors of its page, who speak HTTP.
pub(super) fn page_config(authority: &Arc<Authority>) -> Result<ServerConfig, IdentityError> {
    let mut config = server_config(authority)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns how a master takes connections.
pub(super) fn server_config(authority: &Arc<Authority>) -> Result<ServerConfig, IdentityError> {
    let certificate = CertificateDer::from(authority.certificate().to_vec());
    let webpki =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots(&certificate)?, provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| IdentityError::Unusable(Error::General(error.to_string())))?;
    let verifier = Members { webpki, authority: Arc::clone(authority) };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(IdentityError::Unusable)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(Own(Arc::clone(authority))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Every connection shows its certificate again, so that one which was revoked meanwhile is not remembered.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The certificate a master serves with, renewed while it runs.
#[derive(Debug)]
struct Own(Arc<Authority>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.own_key())
    }
}

/// Accepts members of the fleet whose certificate is not revoked.
#[derive(Debug)]
struct Members {
    webpki: Arc<dyn ClientCertVerifier>,
    authority: Arc<Authority>,
}

impl ClientCertVerifier for Members {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.webpki.verify_client_cert(certificate, intermediates, now)?;
        let member = Member::read(certificate).map_err(|_| refused())?;
        if member.peer.fleet != self.authority.fleet() {
            return Err(refused());
        }
        if self.authority.is_revoked(&member.serial) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

fn refused() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

/// Returns how a member calls masters of its fleet.
pub fn client_config(identity: &Identity) -> Result<ClientConfig, IdentityError> {
    let trust = Trust::Fleet { roots: roots(&identity.authority)?, fleet: identity.peer().fleet.clone() };
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key.to_vec()));
    let mut config = builder(trust)?
        .with_client_auth_cert(vec![identity.certificate.clone()], key)
        .map_err(IdentityError::Unusable)?;
    finish(&mut config);
    Ok(config)
}

/// Returns how somebody calls who knows nothing of a fleet but the hash of its authority's certificate.
pub fn join_config(pin: Digest) -> Result<ClientConfig, IdentityError> {
    let mut config = builder(Trust::Pin(pin))?.with_no_client_auth();
    finish(&mut config);
    Ok(config)
}

fn builder(
    trust: Trust,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, IdentityError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(IdentityError::Unusable)?;
    let verifier = Masters { trust, provider: provider() };
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

fn finish(config: &mut ClientConfig) {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
}

/// Which masters are believed.
enum Trust {
    /// Those of the fleet.
    Fleet { roots: Arc<RootCertStore>, fleet: String },
    /// Those of the authority with this hash.
    Pin(Digest),
}

/// Accepts masters of the fleet, whatever their address.
struct Masters {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Masters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masters").finish_non_exhaustive()
    }
}

impl Masters {
    fn roots(&self, intermediates: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
        match &self.trust {
            Trust::Fleet { roots, .. } => Ok(Arc::clone(roots)),
            Trust::Pin(pin) => {
                let is_pinned = |found: &&CertificateDer<'_>| bool::from(Digest::of(found).0.ct_eq(&pin.0));
                let authority = intermediates.iter().find(is_pinned).ok_or_else(refused)?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                Ok(Arc::new(roots))
            }
        }
    }
}

impl ServerCertVerifier for Masters {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = self.roots(intermediates)?;
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?;
        let member = Member::read(certificate).map_err(|_| refused())?;
        let is_of_fleet = match &self.trust {
            Trust::Fleet { fleet, .. } => member.peer.fleet == *fleet,
            Trust::Pin(_) => true,
        };
        if member.peer.role == Role::Master && is_of_fleet {
            return Ok(ServerCertVerified::assertion());
        }
        Err(refused())
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
