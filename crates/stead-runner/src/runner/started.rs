//! A run that goes on: walked to its end, reported, sealed, signed and packed.

use std::sync::Arc;

use stead_bundle::{ArchiveFormat, SigningKey};
use stead_model::ExitCode;
use stead_model::report::{Report, Warning};
use tokio::task::JoinSet;

use crate::cancel::Canceller;
use crate::dispatcher::Dispatcher;
use crate::lock::RunLocks;
use crate::record::{CompleteMeta, Recording, chain};
use crate::redact::Redactor;

use super::Complete;

/// A run whose first turn is there.
pub(crate) struct Started {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) recording: Option<Arc<Recording>>,
    pub(super) complete: Option<Complete>,
    pub(super) complete_meta: Option<CompleteMeta>,
    pub(super) signing: Option<SigningKey>,
    pub(super) archive: Option<ArchiveFormat>,
    /// Kept so that the dispatcher's wish channel stays open.
    pub(crate) _canceller: Canceller,
    /// Held until the report is written.
    pub(crate) _locks: Option<Arc<RunLocks>>,
}

impl Started {
    /// Walks the run to its end, writes its report and seals its bundle.
    pub(crate) async fn drive(mut self) -> Report {
        self.dispatcher.obey();
        let mut dispatcher = walk(self.dispatcher).await;
        if let Some(pool) = &dispatcher.executor.pool {
            pool.close().await;
        }
        let mut report = dispatcher.run.report();
        let redactor: Arc<Redactor> = Arc::clone(&dispatcher.executor.redactor);
        for error in &mut report.errors {
            error.message = redactor.redact_text(&error.message).into_owned();
        }
        let mut failures = std::mem::take(&mut dispatcher.recording_failures);
        if let Some(recording) = &self.recording {
            report.bundle = Some(recording.directory.path().display().to_string());
        }
        if let Some(complete) = self.complete {
            complete(&mut report);
        }
        if let Some(recording) = &self.recording {
            if !failures.is_empty() {
                incomplete(&mut report);
            }
            let mut late = recording.finish(&report, self.complete_meta);
            if let Some(key) = self.signing.filter(|_| late.is_empty()) {
                late.extend(recording.directory.sign(&key).err().map(|error| chain(&error)));
            }
            for failure in &late {
                let text = format!("the recording is incomplete: {failure}");
                report.warnings.push(Warning::new("record/incomplete", text));
            }
            failures.extend(late);
        }
        drop(dispatcher);
        if let (Some(format), Some(recording)) =
            (self.archive.filter(|_| failures.is_empty()), self.recording)
        {
            match archived(recording, format) {
                Ok(path) => report.bundle = Some(path),
                Err(failure) => {
                    let text = format!("the bundle stays a directory: {failure}");
                    report.warnings.push(Warning::new("record/incomplete", text));
                    failures.push(failure);
                }
            }
        }
        if !failures.is_empty() {
            incomplete(&mut report);
        }
        report
    }
}

/// Replaces the bundle of a run that ended by an archive; returns where it is, or why there is none.
fn archived(recording: Arc<Recording>, format: ArchiveFormat) -> Result<String, String> {
    let recording = Arc::try_unwrap(recording).map_err(|_| "work of the run is still going on".to_owned())?;
    let exported = recording.directory.into_archive(format).map_err(|error| chain(&error))?;
    Ok(exported.path.display().to_string())
}

/// Walks a run to its end on the runtime's own threads.
///
/// There, starting an attempt and hearing of its end need not wake another thread, as they would from the thread
/// that waits for the run. Dropping the future drops the dispatcher, and with it all attempts.
async fn walk(mut dispatcher: Dispatcher) -> Dispatcher {
    let mut walking = JoinSet::new();
    walking.spawn(async move {
        dispatcher.drive().await;
        dispatcher
    });
    match walking.join_next().await.expect("it was just spawned") {
        Ok(dispatcher) => dispatcher,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A successful run whose recording is incomplete exits 4.
fn incomplete(report: &mut Report) {
    if report.exit_code == ExitCode::Success {
        report.exit_code = ExitCode::Verification;
    }
}
