//! This machine, under this account.

mod forwarding;
mod process;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_model::plan::Digest;
use stead_model::transport::TransportSpec;
use stead_runner::transport::{
    Command, FileMeta, Forward, Forwarded, Running, Source, Transport, TransportError,
};

use super::{Surroundings, files, random_name};

/// The machine Stead runs on.
#[derive(Debug)]
pub(super) struct Local {
    around: Arc<Surroundings>,
    spec: TransportSpec,
}

impl Local {
    pub(super) fn new(around: Arc<Surroundings>) -> Self {
        Self { around, spec: TransportSpec::Local }
    }
}

#[async_trait::async_trait]
impl Transport for Local {
    fn spec(&self) -> &TransportSpec {
        &self.spec
    }

    async fn exec(&self, command: Command) -> Result<Running, TransportError> {
        process::start(&self.around, command)
    }

    async fn put(&self, from: Source, to: &Path, meta: FileMeta) -> Result<Digest, TransportError> {
        let (length, digest) = files::measure(&from).await?;
        let there = std::fs::symlink_metadata(to);
        if there.is_ok_and(|there| there.is_file() && there.len() == length) {
            let (_, found) = files::measure(&Source::File(to.to_path_buf())).await?;
            if found == digest {
                files::apply_in_place(to, &meta)?;
                return Ok(digest);
            }
        }
        copy(&from, to, Some(digest), &meta).await
    }

    async fn get(&self, from: &Path, to: &Path) -> Result<Digest, TransportError> {
        copy(&Source::File(PathBuf::from(from)), to, None, &FileMeta::default()).await
    }

    async fn forward(&self, what: Forward) -> Result<Forwarded, TransportError> {
        forwarding::forward(what).await
    }
}

async fn copy(
    from: &Source,
    to: &Path,
    expected: Option<Digest>,
    meta: &FileMeta,
) -> Result<Digest, TransportError> {
    let mut incoming = files::Incoming::create(to, &random_name(8)?).await?;
    let mut pieces = files::Pieces::open(from).await?;
    loop {
        let data = pieces.next().await?;
        if data.is_empty() {
            return incoming.finish(expected, meta).await;
        }
        incoming.write(data).await?;
    }
}
