//! Hand-made events, a buffer to write to, and a report.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use stead_cli::output::Handle;
use stead_model::event::{Counts, Mode, RowResult, RunFinished, RunKind, RunStarted, TaskResult};
use stead_model::plan::Digest;
use stead_model::time::Timestamp;
use stead_model::{
    Cause, ErrorClass, Event, EventKind, ExitCode, HostName, PlanName, RunId, RunStatus, Status, TaskName,
};
use stead_runner::Observer;

/// Memory that a handle writes to.
#[derive(Clone, Default)]
pub(crate) struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    pub(crate) fn handle(&self) -> Handle {
        Handle::new(self.clone())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn task(name: &str) -> TaskName {
    TaskName::parse(name).unwrap()
}

pub(crate) fn host(name: &str) -> HostName {
    HostName::parse(name).unwrap()
}

pub(crate) fn started(name: &str, hosts: &[&str]) -> EventKind {
    EventKind::TaskStarted {
        task: task(name),
        hosts: hosts.iter().map(|name| host(name)).collect(),
        batches: vec![],
    }
}

pub(crate) fn finished(name: &str, status: Status, duration_ms: u64, error: Option<&str>) -> EventKind {
    let mut result = TaskResult::new(status);
    result.duration_ms = duration_ms;
    result.error = error.map(str::to_owned);
    EventKind::TaskFinished { task: task(name), result: Box::new(result) }
}

pub(crate) fn row(name: &str, on: &str, status: Status, duration_ms: u64, error: Option<&str>) -> EventKind {
    let mut result = RowResult::new(status);
    result.duration_ms = duration_ms;
    result.error = error.map(str::to_owned);
    EventKind::HostResult { task: task(name), host: host(on), attempt: 1, result: Box::new(result) }
}

pub(crate) fn retry(name: &str, on: Option<&str>, attempt: u32, retry_in_ms: u64, error: &str) -> EventKind {
    EventKind::AttemptFailed {
        task: task(name),
        host: on.map(host),
        attempt,
        class: ErrorClass::Exit,
        error: error.to_owned(),
        retry_in_ms,
        changed: false,
        instead: None,
    }
}

pub(crate) fn skipped(name: &str, reason: &str) -> EventKind {
    EventKind::TaskSkipped { task: task(name), cause: Cause::Guard, reason: reason.to_owned() }
}

pub(crate) fn run_started() -> EventKind {
    EventKind::RunStarted(Box::new(RunStarted {
        run_id: RunId::parse("r1").unwrap(),
        kind: RunKind::Plan,
        plan: PlanName::parse("web").unwrap(),
        plan_hash: Digest::default(),
        schema: 1,
        stead_version: "0".to_owned(),
        mode: Mode::Run,
        tasks: 1,
        trigger: None,
    }))
}

pub(crate) fn run_finished() -> EventKind {
    EventKind::RunFinished(Box::new(RunFinished {
        status: RunStatus::Success,
        exit_code: ExitCode::Success,
        counts: Counts::default(),
        duration_ms: 5,
        error: None,
    }))
}

/// Gives the events to a renderer, one second apart.
pub(crate) fn feed(renderer: &mut dyn Observer, kinds: impl IntoIterator<Item = EventKind>) {
    for (i, kind) in (1..).zip(kinds) {
        let t = Timestamp::from_micros(i * 1_000_000);
        renderer.on_event(&Event { seq: i.unsigned_abs(), t, kind });
    }
}
