//! Where documents of secret values go: one trait, one implementation per kind of place.

mod file;
mod kubectl;
mod manifest;

use std::collections::BTreeMap;

use stead_runner::operation::{OpContext, OpError};
use stead_runner::redact::Secret;

use super::{InputsDocument, SinkPlace, StepSurroundings};

/// A place that holds one document.
#[async_trait::async_trait]
pub(super) trait Sink: Send + Sync {
    /// Returns why a dry run cannot look at it; none: it can, without starting a program or writing a file.
    fn cannot_look(&self) -> Option<&'static str>;

    /// Returns what it holds, if it holds something.
    async fn look(&self, cx: &OpContext) -> Result<Option<Held>, OpError>;

    /// Puts the document there.
    async fn write(&self, cx: &OpContext) -> Result<(), OpError>;

    /// Takes away what it holds.
    async fn remove(&self, cx: &OpContext) -> Result<(), OpError>;
}

/// What a sink holds.
#[derive(Debug)]
pub(super) struct Held {
    /// What it is, for messages.
    pub(super) what: String,
    /// Whether it carries the managed mark.
    pub(super) managed: bool,
    /// Whether it is exactly as it should be.
    pub(super) as_wanted: bool,
    /// Its keys and values, as far as they can be read.
    pub(super) keys: BTreeMap<String, Secret>,
}

/// Returns the sink of a document.
pub(super) fn of<'a>(document: &'a InputsDocument, surroundings: &'a StepSurroundings) -> Box<dyn Sink + 'a> {
    match &document.sink {
        SinkPlace::File { path, format } => Box::new(file::FileSink { document, path, format }),
        SinkPlace::Kubectl { command, context, namespace, document: secret } => {
            Box::new(kubectl::KubectlSink {
                document,
                surroundings,
                command,
                context: context.as_deref(),
                namespace,
                secret,
            })
        }
    }
}
