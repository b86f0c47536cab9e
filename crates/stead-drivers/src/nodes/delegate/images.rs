//! Images and templates on their way down: a level has what its own nodes boot, and hands it on to theirs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use stead_engine::nodes::find_host;
use stead_model::node::{ImageOffered, ImagesAsked, ImagesOffered};
use stead_model::plan::Digest;
use stead_model::site::host::DriverKind;
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::OpError;
use stead_runner::transport::{Command, Exit, Running, Stdin, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::NodesSurroundings;
use super::super::hosts::{IMAGES, image_dir};
use super::super::line::Line;
use super::super::pairs::{handed_down_server, server_directory};
use super::super::push::AS_OWNER;
use super::Wanted;
use super::deputy::Deputy;
use super::offer::Offer;
use super::pack::pack;
use crate::disk::body::hash;
use crate::errand::COMMAND;
use crate::errand::images::{is_plain, places};
use crate::repositories::{self, handed_down};
use crate::server_client::ServerClient;

/// Puts its input into a directory under a name: whole, by its hash, or not at all. What is there stays.
const TAKE: &str = r#"dir=$1 file=$2 sum=$3
case $dir in /*) ;; *) dir=${STEAD_ROOT:-}/var/lib/stead/$dir ;; esac
umask 077
mkdir -p "$dir" || exit
new=$dir/.$file.$$
trap 'rm -f "$new"' EXIT
cat >"$new" || exit
set -- $(sha256sum "$new")
if [ "$1" != "$sum" ]; then echo 'it did not arrive whole' >&2; exit 1; fi
ln "$new" "$dir/$file" 2>/dev/null || [ -e "$dir/$file" ]"#;

impl NodesSurroundings {
    /// Brings a hosting node the images and templates that nodes below it boot, as far as this level has them and that one
    /// does not. What it has under such a name stays: machines may stand on it.
    pub(super) async fn bring_images(
        &self,
        deputy: &Deputy<'_>,
        wanted: &Wanted,
        line: &Line,
    ) -> Result<(), OpError> {
        let Deputy::Node(node) = deputy else { return Ok(()) };
        let names = self.booted_below(deputy, wanted);
        let own = &self.parts.host;
        let host = self.host_of(Some(node), self.entry(&node.node.name).as_ref());
        let other = (host != own.name).then(|| find_host(&self.parts.site, &host).ok()).flatten();
        let here = image_dir(&other.as_ref().unwrap_or(own).host, &self.parts.state_dir);
        let known = names.into_iter().filter_map(|(name, takes_trees)| {
            let source = source_of(&here, &name, takes_trees)?;
            Some((name, source))
        });
        let mut known: Vec<(String, Source)> = known.collect();
        if known.is_empty() {
            return Ok(());
        }
        let (_, hosting) = self.hosting_of(deputy);
        let setting = hosting.as_ref().and_then(|host| host.driver_settings.get("image_dir")?.as_str());
        let there = setting.unwrap_or(IMAGES);
        let names = known.iter().map(|(name, _)| name.clone()).collect();
        let absent = self.absent(deputy, line, there, names).await?;
        known.retain(|(name, _)| absent.contains(name));
        if known.is_empty() {
            return Ok(());
        }
        let offer = self.offer().await?;
        let mut asides = Vec::new();
        let mut files = Vec::new();
        for (name, source) in known {
            files.push(match source {
                Source::File(path) => (file_name(&path).to_owned(), path),
                Source::Tree(path) => {
                    let packing =
                        |error: io::Error| OpError::io(format_args!("packing {}", path.display()), &error);
                    let aside = offer.aside().map_err(packing)?;
                    let archive = pack(&path, aside.path()).await.map_err(packing)?;
                    asides.push(aside);
                    (format!("{name}.tar"), archive)
                }
            });
        }
        self.hand_over(deputy, line, offer, files, there).await
    }

    /// Brings a deputy the repositories that this level serves, if nodes below it have agents: their server serves them too.
    /// Returns what the archive of them is called there.
    pub(super) async fn bring_repositories(
        &self,
        deputy: &Deputy<'_>,
        line: &Line,
    ) -> Result<Option<String>, OpError> {
        let has_agent = |index: usize| {
            let node = self.parts.forest.nodes.get(index).and_then(|node| self.node(node.name.as_str()).ok());
            node.is_some_and(|node| node.agent_mode().is_some())
        };
        let parts = &self.parts;
        let own = server_directory(&parts.state_dir, &parts.site_dir);
        let serves_any = !parts.site.settings.value.server.repos.is_empty() || handed_down(&own).is_some();
        let is_needed = serves_any && self.below(deputy).into_iter().any(has_agent);
        let Some(server) = parts.server.as_ref().filter(|_| is_needed) else { return Ok(None) };
        let offer = self.offer().await?;
        let aside = offer.aside().map_err(|error| OpError::io("packing repositories", &error))?;
        let packed = server.pack_repositories(aside.path()).await.map_err(OpError::operation)?;
        let Some(archive) = packed else { return Ok(None) };
        let path = archive.clone();
        let hashed = tokio::task::spawn_blocking(move || hash(&mut File::open(path)?)).await;
        let hashed = hashed.map_err(|_| OpError::operation("reading repositories was cut off"))?;
        let (_, sum) = hashed.map_err(|error| OpError::io("reading repositories", &error))?;
        let name = format!("repositories-{}.tar", sum.get(..16).unwrap_or_default());
        let site = parts.site.settings.value.name.as_str();
        let there = repositories::directory(&handed_down_server(Path::new(""), site, &parts.name));
        let there = there.to_string_lossy();
        if !self.absent(deputy, line, &there, vec![name.clone()]).await?.is_empty() {
            self.hand_over(deputy, line, offer, vec![(name.clone(), archive)], &there).await?;
        }
        Ok(Some(name))
    }

    /// Returns those of `names` that a directory at the other end does not have.
    async fn absent(
        &self,
        deputy: &Deputy<'_>,
        line: &Line,
        there: &str,
        names: Vec<String>,
    ) -> Result<Vec<String>, OpError> {
        let asked = ImagesAsked { directory: there.to_owned(), names };
        let looked =
            self.ask(line, deputy.node(), &[COMMAND, "absent"], json!(asked).to_string().into()).await?;
        let absent = serde_json::from_slice::<Vec<String>>(&looked.stdout).ok();
        absent.filter(|_| looked.code == Some(0)).ok_or_else(|| {
            OpError::operation(format!("looking for what {deputy} has: {}", looked.complaint()))
        })
    }

    async fn offer(&self) -> Result<Offer, OpError> {
        let state = self.parts.state_dir.clone();
        let begun = tokio::task::spawn_blocking(move || Offer::begin(&state)).await;
        let begun = begun.map_err(|_| OpError::operation("offering files was cut off"))?;
        begun.map_err(|error| OpError::io("offering files", &error))
    }

    /// Has a deputy have files in a directory, each under a name.
    async fn hand_over(
        &self,
        deputy: &Deputy<'_>,
        line: &Line,
        offer: Offer,
        files: Vec<(String, PathBuf)>,
        there: &str,
    ) -> Result<(), OpError> {
        match (line, deputy.node()) {
            (Line::Jobs(client), Some(node)) => self.have_fetched(client, node, offer, files, there).await,
            (Line::Jobs(_), None) => Err(OpError::invalid("only a node has an agent")),
            (Line::Ssh(transport), _) => {
                for (name, file) in &files {
                    bring(&**transport, file, there, name).await.map_err(|error| OpError {
                        message: format!("bringing {name} to {deputy}: {}", error.message),
                        ..error
                    })?;
                }
                Ok(())
            }
        }
    }

    /// Has the agent of a node fetch files from the server of this level, which hands them out meanwhile.
    async fn have_fetched(
        &self,
        client: &ServerClient,
        name: &NodeName,
        offer: Offer,
        files: Vec<(String, PathBuf)>,
        to: &str,
    ) -> Result<(), OpError> {
        let offering = tokio::task::spawn_blocking(move || {
            let files = offered(&offer, files)?;
            Ok((offer, files))
        });
        let offered = offering.await.map_err(|_| OpError::operation("reading images was cut off"))?;
        // As long as it is there they are handed out.
        let (_offer, files) = offered.map_err(|error: io::Error| OpError::io("offering images", &error))?;
        let offered = ImagesOffered { directory: to.to_owned(), files };
        let patience = self.limit(name.as_str(), |limits| limits.delegate);
        let input = json!(offered).to_string().into();
        let fetched = self.ask_agent(client, name, &[COMMAND, "fetch"], input, patience).await?;
        match fetched.code {
            Some(0) => Ok(()),
            _ => Err(OpError::operation(format!("{name} did not fetch its images: {}", fetched.complaint()))),
        }
    }

    /// Returns the names of what nodes below a deputy boot, where whoever makes them has it as a file, and whether it may
    /// be a directory as well.
    fn booted_below(&self, deputy: &Deputy<'_>, wanted: &Wanted) -> BTreeMap<String, bool> {
        let parts = &self.parts;
        let mut names = BTreeMap::new();
        for index in self.below(deputy) {
            let Some(known) = parts.forest.nodes.get(index) else { continue };
            let Ok(node) = self.node(known.name.as_str()) else { continue };
            let is_wanted = wanted.only.as_ref().is_none_or(|only| only.contains(&known.name));
            let takes_trees = match node.known.driver {
                Some(DriverKind::Oci) => true,
                Some(DriverKind::Qemu | DriverKind::CloudHypervisor) => false,
                Some(DriverKind::Sandbox | DriverKind::Proxmox | DriverKind::None) | None => continue,
            };
            let (image, template) = (node.written.image.clone(), node.written.template.clone());
            let default = || parts.site.settings.value.defaults.image.clone();
            let name = image.or(template).or_else(default).filter(|name| is_wanted && is_plain(name));
            if let Some(name) = name {
                *names.entry(name).or_insert(false) |= takes_trees;
            }
        }
        names
    }
}

/// What a level has under the name of an image or a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A file, which goes down as it is.
    File(PathBuf),
    /// A directory, which goes down as an archive.
    Tree(PathBuf),
}

/// Returns what a directory has under this name, looked for as whoever boots it does.
fn source_of(directory: &Path, name: &str, takes_trees: bool) -> Option<Source> {
    let tree = directory.join(name);
    if takes_trees && tree.is_dir() {
        return Some(Source::Tree(tree));
    }
    places(directory, name).find(|place| place.is_file()).map(Source::File)
}

/// Offers files, each with the name it has below, and returns what they are known by. Blocks.
fn offered(offer: &Offer, files: Vec<(String, PathBuf)>) -> io::Result<Vec<ImageOffered>> {
    let mut offered = Vec::new();
    for (file, path) in files {
        let (size, sum) = hash(&mut File::open(&path)?)?;
        let sha256 = Digest::parse(&sum).ok_or_else(|| io::Error::other("a hash is not one"))?;
        offer.add(&sha256, &path)?;
        offered.push(ImageOffered { file, size, sha256 });
    }
    Ok(offered)
}

fn file_name(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Returns a script with its arguments, run by whoever files of Stead belong to.
fn as_owner<'a>(script: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    ["sh", "-c", AS_OWNER, "stead", "sh", "-c"].into_iter().chain(script).collect()
}

/// Brings a file to a directory at the other end, where it has this name.
async fn bring(transport: &dyn Transport, file: &Path, to: &str, name: &str) -> Result<(), OpError> {
    let cut = |_| OpError::operation("reading it was cut off");
    let failed = |error: io::Error| OpError::operation(error.to_string());
    let path = file.to_owned();
    let hashed = tokio::task::spawn_blocking(move || hash(&mut File::open(path)?));
    let (_, sum) = hashed.await.map_err(cut)?.map_err(failed)?;
    let argv = as_owner([TAKE, "stead", to, name, &sum]);
    let command = Command { stdin: Stdin::Piped, ..Command::new(argv) };
    let lost = |error: String| OpError::new(ErrorClass::Unreachable, error);
    let mut running =
        transport.exec(command).await.map_err(|error| OpError::new(error.class(), error.to_string()))?;
    let mut said = Vec::new();
    {
        let Running { stdin, stderr, .. } = &mut running;
        let stdin = stdin.take();
        let sending = async {
            let Some(mut stdin) = stdin else { return io::Result::Ok(()) };
            let mut from = tokio::fs::File::open(file).await?;
            tokio::io::copy(&mut from, &mut stdin).await?;
            stdin.shutdown().await
        };
        let mut limited = stderr.take(64 << 10);
        // What it says counts: a write fails when it has already given up.
        let (_, read) = tokio::join!(sending, limited.read_to_end(&mut said));
        read.map_err(|error| lost(error.to_string()))?;
    }
    match running.process.wait().await.map_err(|error| lost(error.to_string()))? {
        Exit::Code(0) => Ok(()),
        Exit::Code(_) | Exit::Signal(_) => {
            Err(OpError::operation(String::from_utf8_lossy(&said).trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_go_down_to_who_takes_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("debian-12.qcow2"), "").unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        for takes_trees in [false, true] {
            let file = source_of(dir.path(), "debian-12", takes_trees);
            assert_eq!(file, Some(Source::File(dir.path().join("debian-12.qcow2"))));
            let tree = takes_trees.then(|| Source::Tree(dir.path().join("tree")));
            assert_eq!(source_of(dir.path(), "tree", takes_trees), tree);
        }
    }
}
