//! Calls as values: what crosses from a client to the thread of its connection and back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::canon::vm_hash;
use stead_model::WorkerName;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::state::{Assigned, Assignment, Heartbeat, Publication, Verdict};
use stead_model::fleet::vm::read_specs;
use stead_model::fleet::{CommitId, InstanceKey, VmSpec};

use super::{DEADLINE, MAX_MESSAGE, MAX_SPECS, PROTO_MAJOR, PROTO_MINOR, PUBLISH_DEADLINE};
use crate::api::{Applied, Beat, CallError};
use crate::identity::MintOrder;

/// Who is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of the protocol.
    pub proto_major: u16,
    /// What was added to it.
    pub proto_minor: u16,
    /// The version of the program.
    pub version: String,
    /// The fleet.
    pub fleet: String,
    /// Who leads.
    pub leader: String,
    /// Which leader that is.
    pub epoch: u64,
}

impl Hello {
    /// Returns what this program says of itself.
    pub fn new(fleet: &str) -> Self {
        Self {
            proto_major: PROTO_MAJOR,
            proto_minor: PROTO_MINOR,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fleet: fleet.to_owned(),
            leader: String::new(),
            epoch: 0,
        }
    }

    /// Whether a master of this version speaks with who says this: with its own version, and with the one before.
    pub fn is_spoken(&self) -> bool {
        self.proto_major == PROTO_MAJOR || self.proto_major.checked_add(1) == Some(PROTO_MAJOR)
    }

    /// Whether who is of this version can speak with a master that says this: masters are upgraded first.
    pub fn speaks(&self) -> bool {
        self.proto_major == PROTO_MAJOR || PROTO_MAJOR.checked_add(1) == Some(self.proto_major)
    }
}

/// A publication as it travels: specs in their one spelling.
#[derive(Clone, PartialEq, Eq)]
pub struct Desired {
    pub(super) group: String,
    pub(super) commit: String,
    pub(super) generation: u64,
    pub(super) intent_hash: String,
    pub(super) specs_hash: String,
    pub(super) specs: Vec<Vec<u8>>,
    pub(super) policy: Vec<u8>,
    pub(super) publisher: String,
    /// Groups of the same commit that are published with it.
    pub(super) with: Vec<Desired>,
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Desired");
        shown.field("group", &self.group).field("commit", &self.commit).field("generation", &self.generation);
        shown.field("specs", &self.specs.len()).finish_non_exhaustive()
    }
}

impl Desired {
    /// Returns what is sent for a publication and those that go with it, or that it is too large.
    pub fn together(
        publication: &Publication,
        with: &[Publication],
        publisher: &str,
    ) -> Result<Self, CallError> {
        let mut desired = Self::new(publication, publisher)?;
        desired.with = with.iter().map(|one| Self::new(one, publisher)).collect::<Result<_, _>>()?;
        let bytes = desired.size() + desired.with.iter().map(Self::size).sum::<usize>();
        if bytes > MAX_MESSAGE {
            let groups: Vec<&str> = with.iter().map(|one| one.group.as_str()).collect();
            return Err(too_large(format!(
                "group {} and those that VMs move from or to ({}) take {bytes} bytes, and {MAX_MESSAGE} is the most; \
                 move fewer at once",
                publication.group,
                groups.join(", ")
            )));
        }
        Ok(desired)
    }

    /// Returns what is sent for a publication, or that it is too large.
    pub fn new(publication: &Publication, publisher: &str) -> Result<Self, CallError> {
        if publication.specs.len() > MAX_SPECS {
            let found = publication.specs.len();
            return Err(too_large(format!(
                "group {} has {found} VMs, and {MAX_SPECS} is the most; use further groups",
                publication.group
            )));
        }
        let specs: Vec<Vec<u8>> =
            publication.specs.iter().map(|spec| spec.to_canonical().into_bytes()).collect();
        let policy = publication.policy.as_ref().map(|policy| policy.to_canonical().into_bytes());
        let desired = Self {
            group: publication.group.to_string(),
            commit: publication.commit.to_string(),
            generation: publication.generation,
            intent_hash: publication.intent_hash.to_string(),
            specs_hash: publication.specs_hash.to_string(),
            specs,
            policy: policy.unwrap_or_default(),
            publisher: publisher.to_owned(),
            with: Vec::new(),
        };
        let bytes = desired.size();
        if bytes > MAX_MESSAGE {
            return Err(too_large(format!(
                "group {} takes {bytes} bytes, and {MAX_MESSAGE} is the most; use further groups",
                publication.group
            )));
        }
        Ok(desired)
    }

    /// Returns about how large the message is: pointers and padding counted.
    fn size(&self) -> usize {
        let specs: usize = self.specs.iter().map(|spec| spec.len() + 16).sum();
        specs + self.policy.len() + 4_096
    }
}

fn too_large(message: String) -> CallError {
    CallError::Refused { code: "too-large".to_owned(), message }
}

/// An assignment as it travelled: specs not yet read.
#[derive(Clone, PartialEq, Eq)]
pub struct SentAssignment {
    pub(super) generation: u64,
    pub(super) revision: u64,
    pub(super) epoch: u64,
    pub(super) specs: Vec<Vec<u8>>,
    pub(super) instances: Vec<Assigned>,
}

impl fmt::Debug for SentAssignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SentAssignment");
        shown.field("generation", &self.generation).field("revision", &self.revision);
        shown.field("specs", &self.specs.len()).field("instances", &self.instances).finish_non_exhaustive()
    }
}

impl SentAssignment {
    /// Returns what is sent for an assignment.
    pub fn new(assignment: Assignment) -> Self {
        Self {
            generation: assignment.generation,
            revision: assignment.revision,
            epoch: assignment.epoch,
            specs: assignment.specs.iter().map(|spec| spec.to_canonical().into_bytes()).collect(),
            instances: assignment.instances,
        }
    }

    /// Returns what a worker has applied that has applied this.
    pub fn applied(&self) -> Applied {
        Applied { generation: self.generation, revision: self.revision }
    }

    /// Returns the assignment. An instance whose spec this version does not understand, or whose spec is not what its hash
    /// says, points at no spec: its old one stays.
    pub fn into_assignment(self) -> Assignment {
        let mut specs = Vec::new();
        let mut places = Vec::with_capacity(self.specs.len());
        for bytes in &self.specs {
            let found = read_spec(bytes).ok().map(|spec| (vm_hash(&spec), spec));
            let place = u32::try_from(specs.len()).unwrap_or(u32::MAX);
            places.push(found.as_ref().map(|(hash, _)| (place, *hash)));
            specs.extend(found.map(|(_, spec)| Arc::new(spec)));
        }
        let mut instances = self.instances;
        for assigned in &mut instances {
            let place = usize::try_from(assigned.spec).ok().and_then(|at| places.get(at).copied().flatten());
            let known = place.filter(|(_, hash)| *hash == assigned.vm_hash);
            assigned.spec = known.map_or(u32::MAX, |(at, _)| at);
        }
        Assignment {
            generation: self.generation,
            revision: self.revision,
            epoch: self.epoch,
            specs,
            instances,
        }
    }
}

/// Reads one spec, or says what is wrong with it; nothing if it is not even text.
pub(super) fn read_spec(bytes: &[u8]) -> Result<VmSpec, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let text = std::str::from_utf8(bytes).map_err(|_| Diagnostics::default())?;
    let source = Source { name: "spec".into(), text: format!("[{text}]").into() };
    let mut specs = read_specs(&source, &mut diagnostics);
    match specs.pop() {
        Some(spec) if specs.is_empty() && !diagnostics.has_errors() => Ok(spec),
        Some(_) | None => Err(diagnostics),
    }
}

/// What is asked of a master.
#[derive(Clone, Debug)]
pub enum Request {
    /// Who is there.
    Hello(Hello),
    /// A certificate for a token.
    Join {
        /// The token.
        token: Secret,
        /// The request for the certificate.
        csr: Vec<u8>,
    },
    /// A number for a commit.
    Reserve {
        /// The commit.
        commit: CommitId,
        /// Who asks.
        publisher: String,
    },
    /// A publication.
    Publish(Arc<Desired>),
    /// What a worker is to run.
    Assignment {
        /// Which worker.
        worker: WorkerName,
        /// What it has applied.
        applied: Applied,
        /// How long to wait for something else.
        wait: Duration,
    },
    /// A heartbeat.
    Report(Arc<Heartbeat>),
    /// The status.
    Status {
        /// The number that is known.
        after: u64,
        /// How long to wait for a higher one.
        wait: Duration,
        /// Which part, in JSON.
        filter: String,
    },
    /// Why an instance is where it is.
    Explain(InstanceKey),
    /// Everything that a plan needs.
    Snapshot,
    /// How commits fare, in JSON.
    Pipeline(String),
    /// What to freeze, in JSON.
    Hold(String),
    /// The next certificate.
    Renew(Vec<u8>),
    /// A join token.
    Mint(MintOrder),
    /// Every enrolment.
    Enrolments,
    /// End an enrolment.
    Revoke(String),
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Request {
    /// Returns how long it may take.
    pub fn deadline(&self) -> Duration {
        match self {
            Self::Publish(_) => PUBLISH_DEADLINE,
            Self::Assignment { wait, .. } | Self::Status { wait, .. } => wait.saturating_add(DEADLINE),
            Self::Hello(_)
            | Self::Join { .. }
            | Self::Reserve { .. }
            | Self::Report(_)
            | Self::Explain(_)
            | Self::Snapshot
            | Self::Pipeline(_)
            | Self::Hold(_)
            | Self::Renew(_)
            | Self::Mint(_)
            | Self::Enrolments
            | Self::Revoke(_) => DEADLINE,
        }
    }
}

/// What a master answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Who is there.
    Hello(Hello),
    /// A certificate and that of the authority, in DER.
    Admitted {
        /// The new one.
        certificate: Vec<u8>,
        /// The authority's.
        authority: Vec<u8>,
    },
    /// A commit's number.
    Generation(u64),
    /// What became of a publication, and of those that went with it.
    Verdicts(Vec<Verdict>),
    /// What a worker is to run; none: what it has.
    Assignment(Option<SentAssignment>),
    /// The answer to a heartbeat.
    Beat(Beat),
    /// A status with its number.
    Status(String, u64),
    /// A document.
    Json(String),
    /// A name.
    Text(String),
    /// A token.
    Token(Secret),
    /// It is done.
    Done,
}
