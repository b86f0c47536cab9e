//! Making a container of an ordinary account: what a driver has a process do that is root of a user namespace.
//!
//! The driver says on its input what to make. It says each step and goes on when it is answered, so that whoever watches
//! the driver sees steps as if it did them itself; a driver that is gone answers no more.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};

use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use stead_model::machine::{HostKey, MachineSpec, PlantedFile};
use stead_model::site::secrets::Secret;
use stead_runner::machine::MachineError;

use super::{lacks, refuse, through};
use crate::machine::home::{Home, last_lines_of};
use crate::machine::oci::refusal::Refusal;
use crate::machine::oci::storage::{Storage, StorageChoice};
use crate::machine::oci::template::Template;
use crate::machine::oci::{KIND, OciSettings, make_files};

/// Begins the line that says why nothing is made.
const REFUSED: char = '!';
/// Who owns what belongs to nobody that a namespace knows of.
const UNKNOWN_OWNER: u32 = 65_534;

/// What is to be made. Not for anybody's eyes: it has the keys and the files of the machine.
#[derive(Serialize, Deserialize)]
struct Making {
    directory: PathBuf,
    root_dir: PathBuf,
    image_dir: PathBuf,
    storage: StorageChoice,
    hidden: Vec<PathBuf>,
    spec: MachineSpec,
    host_key: Option<String>,
    root_password: Option<String>,
    name_servers: Vec<IpAddr>,
    files: Vec<(String, u32, Vec<u8>)>,
}

/// Makes the files of a machine. `hidden` is left out of a copy. Blocks.
pub(in crate::machine::oci) fn make_apart(
    settings: &OciSettings,
    hidden: &[PathBuf],
    home: &Home,
    spec: &MachineSpec,
    step: &(dyn Fn(&str) + Sync),
) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("make", &error);
    let files = spec.files.iter().map(|file| (file.path.clone(), file.mode, file.content.clone()));
    let making = Making {
        directory: home.directory().to_owned(),
        root_dir: settings.root_dir.clone(),
        image_dir: settings.image_dir.clone(),
        storage: settings.storage,
        hidden: hidden.to_owned(),
        host_key: spec.host_key.as_ref().map(|key| key.expose().to_owned()),
        root_password: spec.root_password.as_ref().map(|hash| hash.expose().to_owned()),
        name_servers: spec.name_servers.clone(),
        files: files.collect(),
        spec: spec.clone(),
    };
    let program = &settings.program;
    let said = tempfile::tempfile().map_err(failed)?;
    let mut command = through(program, None, program, home.directory());
    command.args(["container", "make"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(said.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (to, from) = pipes.ok_or_else(|| failed(io::Error::other("it has no pipes")))?;
    let refused = talk(&making, to, from, step);
    let status = child.wait().map_err(failed)?;
    match refused {
        Ok(None) if status.success() => Ok(()),
        Ok(Some(refusal)) => Err(refusal.into()),
        // What went wrong with a pipe is what ended the process: where that could not even begin, no other try helps.
        Ok(None) | Err(_) => Err(refuse(&lacks(program)).err().unwrap_or_else(|| MachineError::Failed {
            what: format!("the container in {} cannot be made ({status})", home.directory().display()),
            last_lines: last_lines_of(said),
        })),
    }
}

/// Says what to make and answers each step; returns why nothing is made, if that is said.
fn talk(
    making: &Making,
    mut to: ChildStdin,
    from: ChildStdout,
    step: &(dyn Fn(&str) + Sync),
) -> io::Result<Option<Refusal>> {
    let mut text = serde_json::to_vec(making)?;
    text.push(b'\n');
    to.write_all(&text)?;
    for line in BufReader::new(from).lines() {
        let line = line?;
        if let Some(refusal) = line.strip_prefix(REFUSED) {
            return Ok(Some(serde_json::from_str(refusal)?));
        }
        step(&line);
        to.write_all(b"\n")?;
    }
    Ok(None)
}

/// Makes the files of a machine, as the driver on standard input wants it.
///
/// # Errors
/// If it is not understood. What is wrong with the machine is said on standard output.
pub fn make() -> io::Result<()> {
    // A driver that is killed wants nothing any more.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let making: Making = serde_json::from_str(&line)?;
    let say = |text: &str| {
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush())
    };
    let step = |name: &str| {
        let answered = say(name).and_then(|()| io::stdin().read_line(&mut String::new()));
        if !answered.is_ok_and(|size| size > 0) {
            kill_process(getpid(), Signal::KILL).ok();
        }
    };
    match making.make(&step) {
        Ok(()) => Ok(()),
        Err(error) => say(&format!("{REFUSED}{}", serde_json::to_string(&Refusal::from(&error))?)),
    }
}

impl Making {
    fn make(self, step: &(dyn Fn(&str) + Sync)) -> Result<(), MachineError> {
        let home = Home::at(&KIND, self.directory);
        let file = |(path, mode, content)| PlantedFile { path, mode, content };
        let spec = MachineSpec {
            host_key: self.host_key.map(HostKey::new),
            root_password: self.root_password.map(Secret::new),
            name_servers: self.name_servers,
            files: self.files.into_iter().map(file).collect(),
            ..self.spec
        };
        let template = Template::of(spec.boot.as_ref(), &self.image_dir)?;
        let tree = template.tree(&self.root_dir, true)?;
        refuse_unknown_owners(&tree)?;
        step("template");
        let storage = Storage::make(&home, &tree, self.storage, true, &self.hidden)?;
        step("storage");
        make_files(&home, &spec, &storage, step)
    }
}

/// Refuses a tree that belongs to somebody whom the namespace does not know: nobody in the container could be its root.
fn refuse_unknown_owners(tree: &Path) -> Result<(), MachineError> {
    for place in ["", "etc", "usr", "usr/bin/sudo", "usr/sbin/sshd"] {
        let path = tree.join(place);
        if path.symlink_metadata().is_ok_and(|found| found.uid() == UNKNOWN_OWNER) {
            let (path, tree) = (path.display(), tree.display());
            return Err(MachineError::Unsupported(format!(
                "{path} belongs to another account, so that nobody in a container of this one could be its root: \
                 pack {tree} into a tarball as its owner (tar --numeric-owner -czf), and use that as the template"
            )));
        }
    }
    Ok(())
}
