//! Files a driver puts on the target and gets from it, by the same ways as content of operations.

use std::fs::File;
use std::path::PathBuf;

use stead_model::executor::Reply;
use stead_model::plan::Digest;
use stead_model::role::{SiteAnswer, SiteAsk};
use stead_runner::files::Content;
use stead_runner::operation::OpError;

use crate::executor::files::ask;
use crate::roles::site;

use super::{Event, HostSession};

impl HostSession {
    /// Writes a file, unless the same is there already.
    pub(super) fn begin_put(&mut self, id: u32, path: String, mode: Option<u32>, content: Content) {
        let events = self.events.0.clone();
        self.answer_away(id, move || {
            if is_there(&path, mode, &content) {
                return Ok(Reply::Done { sha256: content.sha256, changed: false, found: None });
            }
            let wanted = content.clone();
            let blob: PathBuf = ask(&events, |answer| Event::Want { id, content: wanted, answer })?;
            let mut file =
                File::open(&blob).map_err(|error| OpError::io("cannot read what arrived", &error))?;
            let written = site::install(&mut file, &path, mode)?;
            match Digest::parse(&content.sha256) == Some(written) {
                true => Ok(Reply::Done { sha256: content.sha256, changed: true, found: None }),
                false => {
                    std::fs::remove_file(&path).unwrap_or(());
                    let message = format!("{path} did not arrive as it was sent and was removed");
                    Err(OpError::operation(message))
                }
            }
        });
    }

    /// Sends a file to the driver.
    pub(super) fn begin_get(&mut self, id: u32, path: String) {
        let events = self.events.0.clone();
        self.answer_away(id, move || {
            let mut file = site::open_for_driver(&path)?;
            let content = Content::read(&mut file)
                .map_err(|error| OpError::io(format!("cannot read {path}"), &error))?;
            let sha256 = content.sha256.clone();
            let _kept: String = ask(&events, |answer| Event::Keep { id, file, content, answer })?;
            Ok(Reply::Done { sha256, changed: true, found: None })
        });
    }

    /// Tells what is at a path.
    pub(super) fn begin_stat(&mut self, id: u32, path: String, hash: bool) {
        let site = std::sync::Arc::clone(&self.site);
        self.answer_away(id, move || match site.answer(&SiteAsk::Stat { path, hash })? {
            SiteAnswer::Stat { found } => {
                let sha256 = found.as_ref().and_then(|found| found.sha256.clone()).unwrap_or_default();
                Ok(Reply::Done { sha256, changed: false, found })
            }
            SiteAnswer::Done
            | SiteAnswer::Path { .. }
            | SiteAnswer::Program(_)
            | SiteAnswer::Is { .. }
            | SiteAnswer::Artifacts { .. }
            | SiteAnswer::Leftovers(_) => Err(OpError::operation("an answer out of turn")),
        });
    }
}

fn is_there(path: &str, mode: Option<u32>, content: &Content) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(mut file) = site::open_for_driver(path) else { return false };
    let fits = |metadata: std::fs::Metadata| {
        metadata.len() == content.size && metadata.permissions().mode() & 0o7777 == mode.unwrap_or(0o644)
    };
    file.metadata().is_ok_and(fits) && Content::read(&mut file).is_ok_and(|found| found == *content)
}
