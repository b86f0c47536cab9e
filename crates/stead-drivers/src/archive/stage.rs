//! Where an archive's files wait before they are put in place: `.NAME.stead-unpack` beside the directory.
//!
//! One fixed name, so that what a kill leaves is removed by the next run of the same path.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use stead_runner::operation::{OpContext, OpError, Params};

use crate::disk::body::{Body, hash};
use crate::disk::{Disk, Last, Spot};
use crate::http::client::{self, Request};

/// The largest archive that is fetched.
const LARGEST_ARCHIVE: u64 = 4 << 30;
/// Redirects are followed for a fetch, since the hash says what is meant; not for ever.
const MOST_REDIRECTS: usize = 5;

/// A directory for the time of one unpacking.
pub(super) struct Stage {
    directory: PathBuf,
    count: std::cell::Cell<u64>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Best effort: what stays is removed by the next run.
        std::fs::remove_dir_all(&self.directory).unwrap_or(());
    }
}

impl Stage {
    /// Makes the directory, removing what an earlier run left.
    pub(super) fn create(disk: &Disk, spot: &Spot) -> Result<Self, OpError> {
        let mut name = std::ffi::OsString::from(".");
        name.push(&spot.name);
        name.push(".stead-unpack");
        // Found anew through the root, so that a link of that name cannot lead out of it.
        let place = disk.locate(&spot.path.with_file_name(name), Last::Keep)?;
        let directory = disk.outside(&place.path);
        let failed = |error: std::io::Error| {
            OpError::io(format_args!("cannot stage in `{}`", directory.display()), &error)
        };
        match std::fs::symlink_metadata(&directory) {
            Ok(there) if there.is_dir() => std::fs::remove_dir_all(&directory).map_err(failed)?,
            Ok(_) => std::fs::remove_file(&directory).map_err(failed)?,
            Err(_) => {}
        }
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        Ok(Self { directory, count: std::cell::Cell::new(0) })
    }

    fn next(&self) -> PathBuf {
        self.count.set(self.count.get() + 1);
        self.directory.join(self.count.get().to_string())
    }

    /// Keeps what `reader` gives, until it is put in place.
    pub(super) fn keep(&self, reader: &mut dyn Read) -> std::io::Result<Body> {
        let path = self.next();
        let mut file = File::create_new(&path)?;
        std::io::copy(reader, &mut file)?;
        file.flush()?;
        let mut file = File::open(&path)?;
        Ok(Body::hashed(&mut file)?.with_source(path))
    }

    /// Fetches an archive.
    pub(super) fn fetch(
        &self,
        cx: &OpContext,
        params: &Params,
        url: &str,
        timeout: Duration,
    ) -> Result<File, OpError> {
        let failed = |error: std::io::Error| OpError::io(format_args!("cannot keep {url}"), &error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let mut url = url.to_owned();
        for _ in 0..=MOST_REDIRECTS {
            let path = self.next();
            let mut file = File::create_new(&path).map_err(failed)?;
            let mut size = 0u64;
            let mut sink = |bytes: &[u8]| {
                size += bytes.len() as u64;
                if size > LARGEST_ARCHIVE {
                    return Err(OpError::permanent("the archive is larger than 4 GiB"));
                }
                file.write_all(bytes).map_err(|error| OpError::io("cannot keep the archive", &error))
            };
            let roots = client::roots(cx, params)?;
            let request =
                Request { url: &url, method: "GET", headers: Vec::new(), body: Vec::new(), roots, timeout };
            let response = runtime.block_on(client::send(cx, request, &mut sink))?;
            match response.status {
                200 => return File::open(&path).map_err(failed),
                301 | 302 | 303 | 307 | 308 => {
                    let to =
                        response.headers.into_iter().find(|(name, _)| name == "location").map(|(_, to)| to);
                    url = to
                        .filter(|to| {
                            to.starts_with("https://")
                                || to.starts_with("http://") && url.starts_with("http://")
                        })
                        .ok_or_else(|| OpError::operation(format!("{url}: redirected to nowhere usable")))?;
                }
                status => return Err(OpError::operation(format!("{url}: status {status}"))),
            }
        }
        Err(OpError::operation(format!("{url}: too many redirects")))
    }
}

/// Returns the body of what `reader` gives, kept in `stage` if there is one.
pub(super) fn body(stage: Option<&Stage>, reader: &mut dyn Read) -> std::io::Result<Body> {
    match stage {
        Some(stage) => stage.keep(reader),
        None => Body::hashed(reader),
    }
}

/// Says that hashing alone is enough to know a reader's end: used to run one dry.
pub(super) fn exhaust(reader: &mut dyn Read) -> std::io::Result<()> {
    hash(reader).map(|_| ())
}
