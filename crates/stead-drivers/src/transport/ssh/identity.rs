//! What an account can log in with: keys of the agent and of files, certificates, a password.
//!
//! Each is a [`Candidate`], in the order they are tried; what cannot even be tried is kept as words for the error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, HashAlg, PrivateKey, PublicKey};
use stead_model::transport::SecretSource;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::secret;
use super::settings::Settings;
use crate::transport::Surroundings;

/// No key file is longer.
const LONGEST_KEY: u64 = 1 << 20;

/// How long an agent may take to list its keys; a silent one must not hide the other ways. Signing may wait for a
/// person and has no limit of its own.
const AGENT_PATIENCE: Duration = Duration::from_secs(3);

/// One way to log in.
#[derive(Clone)]
pub(super) enum Candidate {
    /// A key or certificate that the agent signs with.
    Agent(Box<AgentIdentity>),
    /// A key of a file.
    Key { path: PathBuf, key: Arc<PrivateKey> },
    /// A certificate for a key of a file.
    Certificate { path: PathBuf, key: Arc<PrivateKey>, certificate: Box<Certificate> },
    /// A certificate of a file, for a key that only the agent has.
    AgentCertificate { path: PathBuf, key: Box<PublicKey>, certificate: Box<Certificate> },
    /// A password.
    Password(String),
}

impl Candidate {
    /// Returns what it is, without secrets.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Agent(identity) => match identity.as_ref() {
                AgentIdentity::PublicKey { key, comment } => {
                    format!("the agent's key {} ({comment})", key.fingerprint(HashAlg::Sha256))
                }
                AgentIdentity::Certificate { certificate, comment } => {
                    let key = certificate.public_key().fingerprint(HashAlg::Sha256);
                    format!("the agent's certificate of {key} ({comment})")
                }
            },
            Self::Key { path, key } => {
                format!("the key {} ({})", key.fingerprint(HashAlg::Sha256), path.display())
            }
            Self::Certificate { path, key, .. } => {
                format!("the certificate {} of {}", path.display(), key.fingerprint(HashAlg::Sha256))
            }
            Self::AgentCertificate { path, key, .. } => {
                let key = key.fingerprint(HashAlg::Sha256);
                format!("the certificate {} of the agent's key {key}", path.display())
            }
            Self::Password(_) => "the password".to_owned(),
        }
    }

    /// Returns the key, if it is one of the agent.
    fn agent_key(&self) -> Option<&KeyData> {
        match self {
            Self::Agent(identity) => Some(match identity.as_ref() {
                AgentIdentity::PublicKey { key, .. } => key.key_data(),
                AgentIdentity::Certificate { certificate, .. } => certificate.public_key(),
            }),
            Self::AgentCertificate { key, .. } => Some(key.key_data()),
            Self::Key { .. } | Self::Certificate { .. } | Self::Password(_) => None,
        }
    }
}

/// All ways to log in, and what could not become one.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) list: Vec<Candidate>,
    pub(super) problems: Vec<String>,
}

/// A connection to an agent.
pub(super) type Agent = AgentClient<UnixStream>;

/// Returns the agent of `settings` if it answers.
pub(super) async fn connect_agent(settings: &Settings) -> Option<Result<Agent, String>> {
    let socket = settings.agent.as_ref()?;
    let agent = timeout(AGENT_PATIENCE, AgentClient::connect_uds(socket)).await;
    let agent = agent.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
    Some(agent.map_err(|error| format!("the agent at {} does not answer: {error}", socket.display())))
}

/// Collects the ways to log in to the host of `settings`.
pub(super) async fn collect(
    settings: &Settings,
    around: &Surroundings,
    keys: &KeyFiles,
    agent: Option<&mut Agent>,
) -> Candidates {
    let mut found = Candidates::default();
    let mut own = Own::default();
    for (path, asked) in settings
        .identities
        .iter()
        .map(|path| (path, true))
        .chain(settings.default_identities.iter().map(|path| (path, false)))
    {
        match keys.load(path, settings, around).await {
            Ok(Some(Half::Private(key))) => own.files.push((path.clone(), key)),
            Ok(Some(Half::Public(key))) => own.public.push((path.clone(), key)),
            Ok(None) if asked => found.problems.push(format!("the key {} is not there", path.display())),
            Ok(None) => {}
            Err(problem) => found.problems.push(problem),
        }
    }
    for path in certificate_paths(settings) {
        match keys.certificate(&path).await {
            Ok(certificate) => own.certificates.extend(certificate.map(|certificate| (path, certificate))),
            Err(problem) => found.problems.push(problem),
        }
    }
    if let Some(agent) = agent {
        collect_agent(settings, keys, agent, &own, &mut found).await;
    }
    for (path, key) in &own.public {
        let is_in_agent = found.list.iter().any(|candidate| candidate.agent_key() == Some(key.key_data()));
        if !is_in_agent {
            let message = format!("{} is a public key, and no agent has the private one", path.display());
            found.problems.push(message);
        }
    }
    for (path, key) in &own.files {
        for (path, certificate) in own.certificates_of(key.public_key().key_data()) {
            let (path, certificate) = (path.clone(), Box::new(certificate.clone()));
            found.list.push(Candidate::Certificate { path, key: Arc::clone(key), certificate });
        }
        found.list.push(Candidate::Key { path: path.clone(), key: Arc::clone(key) });
    }
    if let Some(source) = &settings.password {
        match secret::read(source, around) {
            Ok(password) => found.list.push(Candidate::Password(password)),
            Err(problem) => found.problems.push(format!("the password: {problem}")),
        }
    }
    found
}

/// What files of the account hold.
#[derive(Default)]
struct Own {
    files: Vec<(PathBuf, Arc<PrivateKey>)>,
    /// Public keys that stand for those of an agent.
    public: Vec<(PathBuf, Box<PublicKey>)>,
    certificates: Vec<(PathBuf, Certificate)>,
}

impl Own {
    fn certificates_of<'a>(&'a self, key: &'a KeyData) -> impl Iterator<Item = &'a (PathBuf, Certificate)> {
        self.certificates.iter().filter(move |(_, certificate)| certificate.public_key() == key)
    }

    fn has(&self, key: &KeyData) -> bool {
        self.files.iter().any(|(_, own)| own.public_key().key_data() == key)
    }
}

async fn collect_agent(
    settings: &Settings,
    keys: &KeyFiles,
    agent: &mut Agent,
    own: &Own,
    found: &mut Candidates,
) {
    let identities = match keys.of_agent(settings, agent).await {
        Ok(identities) => identities,
        Err(problem) => return found.problems.push(problem),
    };
    let mut wanted: Vec<PublicKey> = Vec::new();
    if settings.identities_only {
        for path in &settings.identities {
            let public = keys.text(&PathBuf::from(format!("{}.pub", path.display()))).await;
            wanted.extend(public.ok().flatten().and_then(|text| PublicKey::from_openssh(&text).ok()));
        }
        wanted.extend(own.files.iter().map(|(_, key)| key.public_key().clone()));
        wanted.extend(own.public.iter().map(|(_, key)| PublicKey::clone(key)));
    }
    for identity in identities {
        let data = match &identity {
            AgentIdentity::PublicKey { key, .. } => key.key_data(),
            AgentIdentity::Certificate { certificate, .. } => certificate.public_key(),
        };
        if settings.identities_only && !wanted.iter().any(|key| key.key_data() == data) {
            continue;
        }
        if let AgentIdentity::PublicKey { key, .. } = &identity
            && !own.has(data)
        {
            let certified =
                own.certificates_of(data).map(|(path, certificate)| Candidate::AgentCertificate {
                    path: path.clone(),
                    key: Box::new(key.clone()),
                    certificate: Box::new(certificate.clone()),
                });
            found.list.extend(certified);
        }
        found.list.push(Candidate::Agent(Box::new(identity)));
    }
}

/// Returns where certificates may be: those that are named, and beside each key.
fn certificate_paths(settings: &Settings) -> Vec<PathBuf> {
    let identities = settings.identities.iter().chain(&settings.default_identities);
    let beside = identities.map(|path| {
        let name = path.display().to_string();
        PathBuf::from(format!("{}-cert.pub", name.strip_suffix(".pub").unwrap_or(&name)))
    });
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in settings.certificates.iter().cloned().chain(beside) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Returns nothing for a file that is not there.
fn read_text(path: &Path) -> Result<Option<String>, String> {
    use std::io::Read;
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(LONGEST_KEY).read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// What was read so far: each file once per run, for opening a key is slow on purpose, and each agent's list once.
#[derive(Default)]
pub(super) struct KeyFiles {
    keys: Mutex<Vec<KeyFile>>,
    texts: Mutex<BTreeMap<PathBuf, Result<Option<String>, String>>>,
    agents: Mutex<BTreeMap<PathBuf, Vec<AgentIdentity>>>,
}

struct KeyFile {
    path: PathBuf,
    passphrase: Option<SecretSource>,
    key: Loaded,
}

/// What of a key a file holds.
#[derive(Clone)]
enum Half {
    Private(Arc<PrivateKey>),
    Public(Box<PublicKey>),
}

/// A key, nothing if there is no file, or why it cannot be used.
type Loaded = Result<Option<Half>, String>;

impl std::fmt::Debug for KeyFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyFiles")
    }
}

impl KeyFiles {
    async fn load(&self, path: &Path, settings: &Settings, around: &Surroundings) -> Loaded {
        // Held meanwhile: of hosts that come at once, one reads.
        let mut files = self.keys.lock().await;
        let known = files.iter().find(|file| file.path == path && file.passphrase == settings.passphrase);
        if let Some(known) = known {
            return known.key.clone();
        }
        let key = load(path, settings, around).await;
        files.push(KeyFile {
            path: path.to_owned(),
            passphrase: settings.passphrase.clone(),
            key: key.clone(),
        });
        key
    }

    /// Returns the text of a file that is no secret; nothing if it is not there.
    async fn text(&self, path: &Path) -> Result<Option<String>, String> {
        let mut texts = self.texts.lock().await;
        texts.entry(path.to_owned()).or_insert_with(|| read_text(path)).clone()
    }

    async fn certificate(&self, path: &Path) -> Result<Option<Certificate>, String> {
        let Some(text) = self.text(path).await? else { return Ok(None) };
        Certificate::from_openssh(text.trim())
            .map(Some)
            .map_err(|error| format!("{} is no certificate: {error}", path.display()))
    }

    /// Returns the keys of the agent of `settings`; one that did not answer is asked again.
    async fn of_agent(&self, settings: &Settings, agent: &mut Agent) -> Result<Vec<AgentIdentity>, String> {
        let socket = settings.agent.clone().unwrap_or_default();
        // Held meanwhile: of hosts that come at once, one asks.
        let mut agents = self.agents.lock().await;
        if let Some(known) = agents.get(&socket) {
            return Ok(known.clone());
        }
        match timeout(AGENT_PATIENCE, agent.request_identities()).await {
            Ok(Ok(identities)) => {
                agents.insert(socket, identities.clone());
                Ok(identities)
            }
            Err(_) => Err("the agent does not answer".to_owned()),
            Ok(Err(error)) => Err(format!("the agent gives no keys: {error}")),
        }
    }
}

async fn load(path: &Path, settings: &Settings, around: &Surroundings) -> Loaded {
    let Some(text) = read_text(path)? else { return Ok(None) };
    if let Ok(key) = PublicKey::from_openssh(&text) {
        return Ok(Some(Half::Public(Box::new(key))));
    }
    let private = |key: PrivateKey| Some(Half::Private(Arc::new(key)));
    let name = path.display().to_string();
    let error = match russh::keys::decode_secret_key(&text, None) {
        Ok(key) if !key.is_encrypted() => return Ok(private(key)),
        Ok(_) => None,
        Err(russh::keys::Error::KeyIsEncrypted) => None,
        Err(error) => Some(error),
    };
    let encrypted = error.is_none() || text.contains("ENCRYPTED");
    if !encrypted {
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        return Err(format!("the key {name} cannot be read: {error}"));
    }
    let Some(source) = &settings.passphrase else {
        return Err(format!(
            "the key {name} is encrypted: give its `passphrase` (env:NAME or file:PATH) or add it to an agent"
        ));
    };
    let passphrase =
        secret::read(source, around).map_err(|problem| format!("the passphrase of {name}: {problem}"))?;
    // Opening a key takes a tenth of a second of computing on purpose.
    let opened =
        tokio::task::spawn_blocking(move || russh::keys::decode_secret_key(&text, Some(&passphrase))).await;
    match opened {
        Ok(Ok(key)) => Ok(private(key)),
        Ok(Err(_)) | Err(_) => Err(format!("the key {name} does not open with the `passphrase` given")),
    }
}
