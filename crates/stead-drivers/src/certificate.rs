//! `certificate.ca`: a certificate authority that the machine trusts.
//!
//! The file is put where the distribution's own program looks for local ones, and that program makes the bundle.
//! Under a root prefix it is the prefix's program, run inside; without one the file waits for it.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use sha2::{Digest, Sha256};
use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_runner::operation::{OpContext, OpError, Params, Registry};

use crate::disk::body::hex;
use crate::disk::seen::Kind;
use crate::disk::{Disk, Last};
use crate::file::entry::Want;
use crate::file::params::STATE;
use crate::file::present::{read_source, source_file};
use crate::setup::live::Live;
use crate::setup::settle::{self, Settle};
use crate::setup::{CONFIGURE, Configure, Configured, Setup, input};

/// A certificate is a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(CertificateAuthority));
}

static DESCRIPTOR: Descriptor = Descriptor {
    name: "certificate.ca",
    summary: "Makes sure the machine trusts a certificate authority, or not by this name.",
    root: RootSupport::Full,
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "Name of the file, without its extension.").required(),
        ParamSpec::new(
            "content",
            ParamKind::NonEmptyText,
            "The certificate, in PEM; this or `source` unless `state` is absent.",
        )
        .needed(Needed::UnlessAbsent)
        .judged(|value| judge_texts(value, |text| input::problem(certificate(text.as_bytes())))),
        ParamSpec::new("source", ParamKind::SourcePath, "A file on the driver that holds it.")
            .needed(Needed::UnlessAbsent),
        STATE,
    ],
    exclusive: &[&["content", "source"]],
    ..CONFIGURE
};

/// How a distribution keeps trusted certificates.
struct Store {
    directory: &'static str,
    extension: &'static str,
    program: &'static str,
    /// Its arguments: also what has gone is taken out.
    args: &'static [&'static str],
    package: &'static str,
    bundle: &'static str,
}

const DEBIAN: Store = Store {
    directory: "/usr/local/share/ca-certificates",
    extension: "crt",
    program: "update-ca-certificates",
    args: &["--fresh"],
    package: "ca-certificates",
    bundle: "/etc/ssl/certs/ca-certificates.crt",
};
const RED_HAT: Store = Store {
    directory: "/etc/pki/ca-trust/source/anchors",
    extension: "pem",
    program: "update-ca-trust",
    args: &[],
    package: "ca-certificates",
    bundle: "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
};

impl Store {
    fn of(disk: &Disk) -> Result<&'static Self, OpError> {
        Ok(if disk.exists("/etc/pki/ca-trust".as_ref())? { &RED_HAT } else { &DEBIAN })
    }

    /// Returns where its program is on the target, if it is.
    fn find(&self, disk: &Disk) -> Result<Option<String>, OpError> {
        for directory in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
            let path = format!("{directory}/{}", self.program);
            if disk.exists(path.as_ref())? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

struct CertificateAuthority;

impl Configure for CertificateAuthority {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let store = Store::of(setup.disk)?;
        let name = input::file_name(params, "name", ".")?;
        let path = format!("{}/{name}.{}", store.directory, store.extension);
        if setup.is_running() && store.find(setup.disk)?.is_none() {
            return Err(OpError::permanent(format!(
                "`{}` is not there: the package {} has it",
                store.program, store.package
            )));
        }
        setup.settle(Settle::Certificates);
        if input::is_absent(params) {
            return setup.absent(path);
        }
        let bytes = match (params.text("content"), params.text("source")) {
            (Some(content), _) => content.as_bytes().to_vec(),
            (None, Some(source)) => {
                read_source(setup.cx, source, &source_file(setup.cx, source)?)?.bytes().ok_or_else(|| {
                    OpError::invalid(format!("`source`, `{source}`, is too long for a certificate"))
                })?
            }
            (None, None) => return Err(OpError::invalid("one of `content` and `source` is needed")),
        };
        let der = certificate(&bytes)?;
        let want = Want { new_mode: Some(0o644), ..Want::new(Kind::File).content(bytes) };
        setup.file(path, want)?;
        setup.wish(Live::Certificate(fingerprint(&der)), true.into())
    }
}

/// Returns the one certificate in `pem`.
fn certificate(pem: &[u8]) -> Result<CertificateDer<'static>, OpError> {
    let wrong = |what: String| OpError::invalid(format!("the certificate {what}"));
    if pem.len() as u64 > LONGEST {
        return Err(wrong("is longer than 1 MiB".to_owned()));
    }
    let found: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let mut found = found.map_err(|error| wrong(format!("is not PEM: {error}")))?;
    let (Some(der), true) = (found.pop(), found.is_empty()) else {
        return Err(wrong("must be one, in PEM: use one file for each".to_owned()));
    };
    // The check that whoever trusts it will make.
    rustls::RootCertStore::empty()
        .add(der.clone())
        .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    Ok(der)
}

fn fingerprint(der: &CertificateDer<'_>) -> String {
    hex(&Sha256::digest(der))
}

/// Returns whether the certificate with this SHA-256 is in the bundle of the running system.
pub(crate) fn read(sha256: &str) -> Result<Value, OpError> {
    let bundle = [&DEBIAN, &RED_HAT].iter().find_map(|store| std::fs::read(store.bundle).ok());
    let bundle = bundle.unwrap_or_default();
    let mut certificates = CertificateDer::pem_slice_iter(&bundle);
    Ok(certificates.any(|der| der.is_ok_and(|der| fingerprint(&der) == sha256)).into())
}

/// Makes the bundle anew. Returns what the user should know.
pub(crate) fn rebuild(cx: &OpContext, disk: &Disk) -> Result<Option<String>, OpError> {
    let store = Store::of(disk)?;
    let Some(program) = store.find(disk)? else {
        return Ok(Some(format!("the bundle was not made anew: the root has no `{}`", store.program)));
    };
    let Some(root) = &cx.root else {
        return settle::checked(cx, &program, store.args).map(|_| None);
    };
    let root = root.to_str().ok_or_else(|| OpError::permanent("the root is not text"))?;
    // Its links are absolute: only inside the root do they say the same.
    let spot = disk.locate(Path::new(&program), Last::Follow)?;
    let inside = spot.path.to_str().unwrap_or(&program).to_owned();
    settle::checked(cx, "chroot", &[&["--", root, &inside], store.args].concat()).map(|_| None)
}
