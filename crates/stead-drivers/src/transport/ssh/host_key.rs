//! Whether a server is the one that was meant: its key against a pin or the known_hosts files.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Certificate, HashAlg, PublicKey, PublicKeyOrCertificate};
use rustix::fs::{FlockOperation, flock};
use stead_runner::transport::{TransportError, TransportErrorKind};

use super::known_hosts::{Known, KnownHosts, Verdict, host_name, new_line};
use super::pattern;
use super::settings::{Policy, Settings};
use crate::transport::Notices;

/// No known_hosts file is longer; what is, is not read.
const LONGEST_FILE: u64 = 64 << 20;

/// What is asked of the key of one server.
#[derive(Debug)]
pub(super) struct HostKeyCheck {
    policy: Policy,
    display: String,
    /// The name without port, which certificates carry.
    plain: String,
    /// As known_hosts names it.
    names: Vec<String>,
    /// Where OpenSSH also looks when the port is not 22.
    without_port: Option<String>,
    host: String,
    port: u16,
    files: Vec<PathBuf>,
    record_in: Option<PathBuf>,
    hashed: bool,
    known: Arc<KnownHosts>,
    read: KnownFiles,
    notices: Notices,
}

/// Files that were read so far: each once per run, until this run itself records a key.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownFiles(Arc<Mutex<BTreeMap<Vec<PathBuf>, Arc<KnownHosts>>>>);

impl KnownFiles {
    fn read(&self, files: &[PathBuf]) -> Result<Arc<KnownHosts>, TransportError> {
        let mut read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(files) {
            return Ok(Arc::clone(known));
        }
        let mut known = KnownHosts::default();
        for file in files {
            // An unreadable file could hide a revocation: that is no way to go on.
            if let Some(text) = read_file(file).map_err(|error| unreadable(file, &error))? {
                known.add(&file.display().to_string(), &text);
            }
        }
        let known = Arc::new(known);
        read.insert(files.to_vec(), Arc::clone(&known));
        Ok(known)
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl HostKeyCheck {
    /// Reads the files that matter for the host of `settings`.
    pub(super) fn new(
        settings: &Settings,
        read: &KnownFiles,
        notices: Notices,
    ) -> Result<Self, TransportError> {
        let files: Vec<PathBuf> =
            settings.user_known_hosts.iter().chain(&settings.global_known_hosts).cloned().collect();
        let known = match settings.policy {
            Policy::Strict | Policy::AcceptNew => read.read(&files)?,
            Policy::Pinned(_) | Policy::Insecure => Arc::default(),
        };
        let (plain, names, without_port) = match &settings.host_key_alias {
            Some(alias) => (alias.to_lowercase(), vec![alias.to_lowercase()], None),
            None => {
                let plain = settings.host.to_lowercase();
                let without = (settings.port != 22).then(|| plain.clone());
                (plain, vec![host_name(&settings.host, settings.port)], without)
            }
        };
        Ok(Self {
            policy: settings.policy.clone(),
            display: settings.name(),
            plain,
            names,
            without_port,
            host: settings.host.clone(),
            port: settings.port,
            record_in: settings.user_known_hosts.first().cloned(),
            files,
            hashed: settings.hash_known_hosts,
            known,
            read: read.clone(),
            notices,
        })
    }

    /// Returns the types of keys known for the host: they are asked for first.
    pub(super) fn kinds(&self) -> Vec<String> {
        if let Policy::Pinned(pin) = &self.policy {
            return pinned_kind(pin).map(str::to_owned).into_iter().collect();
        }
        let kinds = self.known.kinds(&self.names);
        match &self.without_port {
            Some(name) if kinds.is_empty() => self.known.kinds(std::slice::from_ref(name)),
            _ => kinds,
        }
    }

    /// Whether the host may prove itself by a certificate.
    pub(super) fn takes_certificates(&self) -> bool {
        self.known.has_authority(&self.names)
            || self
                .without_port
                .as_ref()
                .is_some_and(|name| self.known.has_authority(std::slice::from_ref(name)))
    }

    /// Accepts the key or says why not.
    pub(super) fn check(&self, offered: &PublicKeyOrCertificate) -> Result<(), TransportError> {
        let key = offered.public_key();
        match &self.policy {
            Policy::Insecure => return Ok(()),
            Policy::Pinned(pin) => return self.check_pin(pin, &key),
            Policy::Strict | Policy::AcceptNew => {}
        }
        let bytes =
            key.to_bytes().map_err(|error| self.refuse(format!("has a key that is none: {error}")))?;
        let names: Vec<String> = self.names.iter().chain(&self.without_port).cloned().collect();
        if let Some(revoked) = self.known.revoked(&names, &bytes) {
            return Err(self.revoked(&key, &revoked));
        }
        if let Some(certificate) = offered.certificate()
            && self.check_certificate(certificate, &names)?
        {
            return Ok(());
        }
        match self.known.judge(&self.names, &bytes) {
            Verdict::Known => Ok(()),
            Verdict::Revoked(revoked) => Err(self.revoked(&key, &revoked)),
            Verdict::Changed(known) => Err(self.changed(&key, &known)),
            Verdict::Unknown => self.unknown(&key, &bytes),
        }
    }

    /// Whether the pinned key is not this one but may be one of another type.
    pub(super) fn wants_another_than(&self, key: &PublicKey) -> bool {
        match &self.policy {
            Policy::Pinned(pin) => {
                !is_pinned(pin, key) && pinned_kind(pin).is_none_or(|kind| kind != key.algorithm().as_str())
            }
            Policy::Strict | Policy::AcceptNew | Policy::Insecure => false,
        }
    }

    fn check_pin(&self, pin: &str, key: &PublicKey) -> Result<(), TransportError> {
        if is_pinned(pin, key) {
            return Ok(());
        }
        Err(self.refuse(other_than_pinned(pin, std::slice::from_ref(key))))
    }

    /// Returns whether an authority vouches for the host; none knowing it means the plain key decides.
    fn check_certificate(&self, certificate: &Certificate, names: &[String]) -> Result<bool, TransportError> {
        let authority = PublicKey::new(certificate.signature_key().clone(), "");
        let bytes =
            authority.to_bytes().map_err(|error| self.refuse(format!("has a bad certificate: {error}")))?;
        if let Some(revoked) = self.known.revoked(names, &bytes) {
            return Err(self.revoked(&authority, &revoked));
        }
        if !self.known.is_authority(names, &bytes) {
            return Ok(false);
        }
        let fingerprint = authority.fingerprint(HashAlg::Sha256);
        let problem = if certificate.cert_type() != CertType::Host {
            Some("is not one of a host".to_owned())
        } else if !certificate.critical_options().is_empty() {
            Some("has critical options, which no host certificate has".to_owned())
        } else if let Err(error) = certificate.validate([&fingerprint]) {
            Some(format!("is not valid now, or its signature is wrong ({error})"))
        } else {
            let principals = certificate.valid_principals();
            let named = principals.is_empty()
                || principals.iter().any(|name| pattern::matches(&name.to_lowercase(), &self.plain));
            (!named).then(|| format!("is for {}, not for {}", principals.join(", "), self.plain))
        };
        match problem {
            None => Ok(true),
            Some(problem) => Err(self.refuse(format!(
                "has a certificate of the authority {fingerprint} that {problem}; have it signed anew"
            ))),
        }
    }

    fn unknown(&self, key: &PublicKey, bytes: &[u8]) -> Result<(), TransportError> {
        if let Some(name) = &self.without_port
            && self.known.judge(std::slice::from_ref(name), bytes) == Verdict::Known
        {
            return Ok(());
        }
        let (kind, fingerprint) = (key.algorithm(), key.fingerprint(HashAlg::Sha256));
        if self.policy == Policy::AcceptNew {
            let Some(file) = &self.record_in else {
                return Err(self.refuse(format!(
                    "has the unknown key {kind} {fingerprint}, and no known_hosts file is configured to record it in"
                )));
            };
            return self.record(file, key, bytes).map_err(|error| unreadable(file, &error))?;
        }
        let searched: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let first =
            self.record_in.as_ref().map_or_else(|| "known_hosts".into(), |file| file.display().to_string());
        Err(self.refuse(format!(
            "has the unknown key {kind} {fingerprint}: no line for it in {}. Compare the fingerprint with the \
             machine's; then run `ssh-keyscan -p {} {} >> {first}`, or name a file with `known_hosts=`, or record it at \
             first sight with `host_keys=accept-new`; for tests alone there is `insecure=true`",
            searched.join(", "),
            self.port,
            self.host,
        )))
    }

    /// Appends the key under a lock, unless another run did so meanwhile.
    fn record(&self, file: &Path, key: &PublicKey, bytes: &[u8]) -> io::Result<Result<(), TransportError>> {
        if let Some(directory) = file.parent() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(directory)?;
        }
        let mut open = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(file)?;
        flock(&open, FlockOperation::LockExclusive)?;
        open.seek(SeekFrom::Start(0))?;
        let text = read_open(&open)?;
        let mut now = KnownHosts::default();
        now.add(&file.display().to_string(), &text);
        match now.judge(&self.names, bytes) {
            Verdict::Known => return Ok(Ok(())),
            Verdict::Changed(known) => return Ok(Err(self.changed(key, &known))),
            Verdict::Revoked(known) => return Ok(Err(self.revoked(key, &known))),
            Verdict::Unknown => {}
        }
        let name = self.names.first().map_or("", String::as_str);
        let mut plain = key.clone();
        plain.set_comment("");
        let written = plain.to_openssh().map_err(io::Error::other)?;
        let salt = if self.hashed {
            let mut salt = [0; 20];
            getrandom::fill(&mut salt).map_err(io::Error::other)?;
            Some(salt)
        } else {
            None
        };
        let mut line = new_line(name, written.trim(), salt.as_ref().map(<[u8; 20]>::as_slice));
        if !text.is_empty() && !text.ends_with('\n') {
            line.insert(0, '\n');
        }
        open.write_all(line.as_bytes())?;
        // Many configurations name /dev/null, which keeps nothing and cannot be synced.
        let is_kept = open.metadata()?.is_file();
        if is_kept {
            open.sync_all()?;
        }
        self.read.forget();
        let (kind, fingerprint) = (key.algorithm(), key.fingerprint(HashAlg::Sha256));
        let (host, file) = (&self.display, file.display());
        let done = if is_kept { "is now recorded in" } else { "is not kept by" };
        self.notices.send(
            "reach/new-host-key",
            format!("the key {kind} {fingerprint} of {host} was unknown and {done} {file}"),
        );
        Ok(Ok(()))
    }

    fn changed(&self, key: &PublicKey, known: &Known) -> TransportError {
        let (kind, fingerprint) = (key.algorithm(), key.fingerprint(HashAlg::Sha256));
        let old = PublicKey::from_bytes(&known.key).map_or_else(
            |_| known.kind.clone(),
            |key| format!("{} {}", known.kind, key.fingerprint(HashAlg::Sha256)),
        );
        let (file, line) = (&known.place.file, known.place.line);
        self.refuse(format!(
            "has the key {kind} {fingerprint}, and {file}:{line} says {old}: it is another machine, or its key was \
             changed. If that is right, remove the line"
        ))
    }

    fn revoked(&self, key: &PublicKey, known: &Known) -> TransportError {
        let (kind, fingerprint) = (key.algorithm(), key.fingerprint(HashAlg::Sha256));
        let (file, line) = (&known.place.file, known.place.line);
        self.refuse(format!("has the key {kind} {fingerprint}, which {file}:{line} revokes"))
    }

    fn refuse(&self, what: String) -> TransportError {
        TransportError::new(TransportErrorKind::HostKey, format!("{} {what}", self.display))
    }
}

/// Whether a pin is this key.
fn is_pinned(pin: &str, key: &PublicKey) -> bool {
    if pin.starts_with("SHA256:") {
        return pin.trim_end_matches('=') == key.fingerprint(HashAlg::Sha256).to_string();
    }
    PublicKey::from_openssh(pin).is_ok_and(|pinned| pinned.key_data() == key.key_data())
}

/// Returns the type of the pinned key; a fingerprint does not tell.
fn pinned_kind(pin: &str) -> Option<&str> {
    pin.split_once(' ').map(|(kind, _)| kind)
}

/// Returns what is wrong with the server of `settings`, none of whose keys is the pinned one.
pub(super) fn not_pinned(settings: &Settings, shown: &[PublicKey]) -> TransportError {
    let pin = match &settings.policy {
        Policy::Pinned(pin) => pin.as_str(),
        Policy::Strict | Policy::AcceptNew | Policy::Insecure => "nothing",
    };
    let message = format!("{} {}", settings.name(), other_than_pinned(pin, shown));
    TransportError::new(TransportErrorKind::HostKey, message)
}

fn other_than_pinned(pin: &str, shown: &[PublicKey]) -> String {
    let keys: Vec<String> =
        shown.iter().map(|key| format!("{} {}", key.algorithm(), key.fingerprint(HashAlg::Sha256))).collect();
    let (noun, keys) = (if keys.len() == 1 { "key" } else { "keys" }, keys.join(", "));
    format!("has the {noun} {keys}, and `host_key` says {pin}: it is another machine, or its key was changed")
}

fn unreadable(file: &Path, error: &io::Error) -> TransportError {
    TransportError::new(
        TransportErrorKind::HostKey,
        format!("{} cannot be used to check host keys: {error}", file.display()),
    )
}

/// Returns nothing for a file that is not there.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    match File::open(path) {
        Ok(file) => read_open(&file).map(Some),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn read_open(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 64 MiB"));
    }
    // Comments may be in any encoding.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
