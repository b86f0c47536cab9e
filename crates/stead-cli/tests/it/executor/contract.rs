//! The operation contract over SSH: the same suite and the same cases as on this machine, carried out by the executor
//! behind a real server, in the language of the protocol.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use stead_drivers::Drivers;
use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_model::executor::{
    BANNER, EntryKind, Frame, FrameBuffer, FrameKind, Hello, OpRequest, PROTOCOL, Reply, Request, write,
};
use stead_model::transport::TransportSpec;
use stead_model::{OperationName, RunId};
use stead_runner::files::{DriverFiles as _, LocalFiles, Needs};
use stead_runner::operate::{Ran, from_result};
use stead_runner::operation::{OpContext, OpError, Params, Registry};
use stead_runner::transport::{Command, Connect as _, Running, Stdin, Transport};
use stead_testkit::container::inside;
use stead_testkit::file_cases::{EDITS, PRESENT, SHAPES};
use stead_testkit::operation_contract::{Carrier, Case, Went, violations_by};
use stead_testkit::sshd::{self, Sshd};
use stead_testkit::system_cases::{accounts, configuration, packages, services};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::direct::stead;

/// Carries operations out by an executor behind SSH.
struct Remote {
    runtime: tokio::runtime::Runtime,
    transport: Arc<dyn Transport>,
    registry: Registry,
    base: tempfile::TempDir,
    session: RefCell<Option<Session>>,
    sshd: Sshd,
    thorough: bool,
}

/// A conversation with the executor.
struct Session {
    running: Running,
    inbox: FrameBuffer,
    last_id: u32,
}

impl Session {
    async fn say(&mut self, bytes: &[u8]) {
        let stdin = self.running.stdin.as_mut().unwrap();
        stdin.write_all(bytes).await.unwrap();
        stdin.flush().await.unwrap();
    }

    async fn hear(&mut self) -> (u32, Reply) {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.inbox.next_frame().unwrap() {
                return (frame.id, Reply::read(&frame.body).unwrap());
            }
            let count = self.running.stdout.read(&mut buffer).await.unwrap();
            assert!(count > 0, "the executor ended");
            self.inbox.push(&buffer[..count]);
        }
    }
}

impl Remote {
    fn new(thorough: bool) -> Self {
        let sshd = Sshd::start();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let transports = Transports::new(Surroundings::default(), Notices::ignored());
        let spec = TransportSpec::Ssh(Box::new(sshd.spec()));
        let transport = runtime.block_on(transports.connect(&spec)).unwrap();
        let base = tempfile::tempdir().unwrap();
        let registry = Drivers::standard();
        Self { runtime, transport, registry, base, session: RefCell::new(None), sshd, thorough }
    }

    async fn attach(&self, root: Option<&PathBuf>) -> Session {
        let words = [&stead().display().to_string(), "executor", "--attach", "suite", "--base"];
        let mut command = Command::new(words);
        command.argv.push(self.base.path().into());
        command.stdin = Stdin::Piped;
        let running = self.transport.exec(command).await.unwrap();
        let mut session = Session { running, inbox: FrameBuffer::default(), last_id: 0 };
        let mut banner = vec![0; BANNER.len()];
        session.running.stdout.read_exact(&mut banner).await.unwrap();
        assert_eq!(banner, BANNER);
        let hello = Hello {
            protocol: vec![PROTOCOL],
            version: "suite".to_owned(),
            run: RunId::parse("suite").unwrap(),
            lease_ms: 60_000,
            root: root.map(|root| root.display().to_string()),
            fresh: true,
            host: "web1".to_owned(),
            received: Vec::new(),
            workdir: None,
        };
        let mut frame = Vec::new();
        write(&mut frame, 0, &Request::Hello(hello)).unwrap();
        session.say(&frame).await;
        let (_, reply) = session.hear().await;
        assert!(matches!(reply, Reply::Hello(_)), "{reply:?}");
        session
    }

    /// Returns the message for an operation, and the driver's files it may ask for, by hash.
    fn request(
        &self,
        operation: &str,
        cx: &OpContext,
        params: &Params,
        check: bool,
    ) -> (OpRequest, BTreeMap<String, PathBuf>) {
        let Needs { sources, names, .. } = self.registry.get(operation).unwrap().needs(params);
        let files = LocalFiles { base_dir: cx.base_dir.clone(), artifacts: None };
        let (mut trees, mut content) = (BTreeMap::new(), BTreeMap::new());
        for (source, exclude) in sources {
            let tree = files.tree(&source, &exclude).map_err(|error| error.message);
            for entry in tree.iter().flat_map(|tree| &tree.entries) {
                if entry.kind == EntryKind::File {
                    content.insert(entry.sha256.clone(), files.content(&source, entry).unwrap());
                }
            }
            trees.insert(source, tree.map(Arc::unwrap_or_clone));
        }
        let marks = [("STEAD_TASK", "suite"), ("STEAD_HOST", "web1"), ("STEAD_ATTEMPT", "1")];
        let request = OpRequest {
            operation: OperationName::parse(operation).unwrap(),
            params: params.as_map().clone(),
            check,
            diff: true,
            secrets: Vec::new(),
            env: marks.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            timeout_ms: None,
            grace_ms: 1000,
            undo: !check,
            hidden_env: Vec::new(),
            sources: trees,
            names: names.then(serde_json::Map::new),
            answers: BTreeMap::new(),
            restarted: None,
        };
        (request, content)
    }

    fn operate(&self, operation: &str, cx: &OpContext, params: &Params, check: bool) -> Result<Ran, OpError> {
        let (request, content) = self.request(operation, cx, params, check);
        let mut session = self.session.borrow_mut();
        let session = session.as_mut().expect("the suite begins first");
        session.last_id += 1;
        let id = session.last_id;
        self.runtime.block_on(async {
            let mut frame = Vec::new();
            write(&mut frame, id, &Request::Op(Box::new(request))).unwrap();
            session.say(&frame).await;
            loop {
                let (of, reply) = session.hear().await;
                match reply {
                    Reply::Result(result) => {
                        assert_eq!(of, id);
                        let mut ack = Vec::new();
                        write(&mut ack, 0, &Request::Ack { id }).unwrap();
                        session.say(&ack).await;
                        return from_result(*result);
                    }
                    Reply::Want { sha256, offset } => {
                        let bytes = fs::read(&content[&sha256]).unwrap();
                        let head = Request::Blob { sha256, size: bytes.len() as u64, offset, error: None };
                        let mut frames = Vec::new();
                        write(&mut frames, id, &head).unwrap();
                        let rest = &bytes[usize::try_from(offset).unwrap()..];
                        Frame::write(&mut frames, FrameKind::Bytes, id, rest).unwrap();
                        session.say(&frames).await;
                    }
                    other @ (Reply::Hello(_)
                    | Reply::Out { .. }
                    | Reply::Keep(_)
                    | Reply::Lock { .. }
                    | Reply::Beat
                    | Reply::Started { .. }
                    | Reply::Done { .. }
                    | Reply::Role { .. }
                    | Reply::Probe(_)
                    | Reply::Site(_)
                    | Reply::Error { .. }) => panic!("not expected: {other:?}"),
                }
            }
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        *self.session.borrow_mut() = None;
        // With it goes the session there.
        self.sshd.end();
    }
}

impl Carrier for Remote {
    fn begin(&self, cx: &OpContext) {
        *self.session.borrow_mut() = None;
        *self.session.borrow_mut() = Some(self.runtime.block_on(self.attach(cx.root.as_ref())));
    }

    fn check(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Option<Value>, OpError> {
        let ran = self.operate(operation, cx, params, true)?;
        ran.failure.map_or(Ok(ran.diff), Err)
    }

    fn run(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Went, OpError> {
        let ran = self.operate(operation, cx, params, false)?;
        let went = Went { changed: ran.changed, diff: ran.diff, inverse: ran.inverse, data: ran.data };
        ran.failure.map_or(Ok(went), Err)
    }

    fn is_thorough(&self) -> bool {
        self.thorough
    }
}

fn passes(cases: &[Case]) {
    passes_by(true, cases);
}

/// As [`passes`], on a whole system of its own; what else the suite asks for is asked of the operations themselves.
fn passes_on_a_system(cases: &[Case]) {
    passes_by(false, cases);
}

/// Returns the first case of each operation.
fn first_of_each(cases: &[Case]) -> Vec<Case> {
    let mut seen = BTreeSet::new();
    cases.iter().filter(|case| seen.insert(case.operation)).cloned().collect()
}

fn passes_by(thorough: bool, cases: &[Case]) {
    if !sshd::available() {
        return;
    }
    let remote = Remote::new(thorough);
    let found: Vec<String> =
        cases.iter().flat_map(|case| violations_by(&remote, &remote.registry, case)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Case 17, over SSH.
#[test]
fn files_keep_the_contract_over_ssh() {
    passes(PRESENT);
}

/// Case 17, over SSH.
#[test]
fn directories_links_and_absence_keep_the_contract_over_ssh() {
    passes(SHAPES);
}

/// Case 17, over SSH.
#[test]
fn edits_templates_and_copies_keep_the_contract_over_ssh() {
    passes(EDITS);
}

/// Case 17, over SSH, by the programs of a system.
#[test]
fn users_and_groups_keep_the_contract_over_ssh() {
    inside(|| passes_on_a_system(&first_of_each(accounts::CASES)));
}

/// Case 17, over SSH, by the programs of a system.
#[test]
fn packages_keep_the_contract_over_ssh() {
    inside(|| passes_on_a_system(&first_of_each(packages::CASES)));
}

/// Case 17, over SSH; what runs is a stand-in's.
#[test]
fn services_and_units_keep_the_contract_over_ssh() {
    inside(|| passes_on_a_system(&first_of_each(services::CASES)));
}

/// Case 17, over SSH.
#[test]
fn access_and_identity_keep_the_contract_over_ssh() {
    inside(|| passes_on_a_system(&first_of_each(&[configuration::ACCESS, configuration::IDENTITY].concat())));
}

/// Case 17, over SSH.
#[test]
fn the_running_system_keeps_the_contract_over_ssh() {
    inside(|| passes_on_a_system(&first_of_each(configuration::RUNNING)));
}
