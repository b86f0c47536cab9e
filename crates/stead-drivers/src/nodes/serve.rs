//! `node.server`: the server of a level is there while its nodes need it, and what its nodes are told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::node::ServerEntry;
use stead_model::node::operations::serving;
use stead_model::report::Warning;
use stead_model::site::address::Authority;
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::{OpContext, OpError, Outcome};
use tokio::time::{Instant, sleep};

use super::NodesSurroundings;
use super::pairs::{Pairs, server_directory};
use crate::server_client::ServerClient;

/// How long others may take to start or stop the server: clones are made before it answers.
const LONGEST_TURN: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Starts, asks and stops the server of a level: what a program has that can be one.
#[async_trait::async_trait]
pub trait LevelServer: Send + Sync {
    /// Has a server of the site answer, with the site as it is now.
    async fn ensure(&self) -> Result<Serving, String>;

    /// Returns the server of the site that answers now, if one does. Starts nothing.
    async fn find(&self) -> Result<Option<Serving>, String>;

    /// Stops it.
    async fn stop(&self) -> Result<(), String>;

    /// Has it read the site again, if it runs.
    async fn reload(&self) -> Result<(), String>;

    /// Returns an archive of the repositories that it serves, made in `aside` unless there is one; none: it serves none.
    async fn pack_repositories(&self, aside: &Path) -> Result<Option<PathBuf>, String>;
}

/// A server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Its port.
    pub port: u16,
    /// SHA-256 of its certificate, `AB:CD:…`.
    pub fingerprint: String,
    /// SHA-256 of its key.
    pub spki_pin: String,
    /// The socket for operators of the same account.
    pub socket: PathBuf,
    /// Whether this call started it.
    pub started: bool,
    /// Whether a run started it: then a run stops it.
    pub for_run: bool,
}

impl NodesSurroundings {
    /// Has a server answer, or lets go of it.
    pub(super) async fn serve(&self, _: &OpContext, act: &str) -> Result<Outcome, OpError> {
        match act {
            serving::ENSURE => self.ensure_server().await,
            serving::RELEASE => self.release_server().await,
            other => Err(OpError::invalid(format!("nothing is called `{other}` that a server does"))),
        }
    }

    async fn ensure_server(&self) -> Result<Outcome, OpError> {
        let _turn = self.server_turn().await?;
        let wanted = self.agents_wanted();
        let elsewhere = self.served_elsewhere();
        if let Some((name, pair)) = wanted.iter().find_map(|name| elsewhere.get_key_value(name)) {
            return Err(OpError::permanent(format!(
                "{name} fetches from this server already: it is of {pair}"
            )));
        }
        let serving = self.serving().await?;
        let address = self.parts.wishes.self_addr.as_deref();
        let address = address
            .ok_or_else(|| OpError::invalid("nobody said by which address nodes reach this machine"))?;
        let url = told_url(address, serving.port)?;
        let changed = self.parts.memory.change(|state| {
            let before = state.server.take();
            let mut nodes = before.as_ref().map(|before| before.nodes.clone()).unwrap_or_default();
            nodes.extend(wanted);
            let (port, fingerprint) = (serving.port, serving.fingerprint.clone());
            state.server = Some(ServerEntry { url, port, fingerprint, nodes });
            state.server != before
        });
        self.parts.memory.flush().await?;
        Ok(Outcome { changed: changed || serving.started, ..Outcome::default() })
    }

    /// Returns the nodes of this level whose agents this run has ask the server.
    fn agents_wanted(&self) -> BTreeSet<NodeName> {
        let forest = &self.parts.forest;
        let meant = forest.roots().filter(|index| self.parts.selection.selected.get(*index) == Some(&true));
        let here = meant.filter(|index| self.deputy_of(*index).is_none());
        let names = here.map(|index| forest.nodes[index].name.clone());
        names.filter(|name| self.node(name.as_str()).is_ok_and(|node| node.agent_mode().is_some())).collect()
    }

    /// Notes that a node does not fetch from the server any more.
    pub(super) fn unclaim(&self, name: &NodeName) {
        self.parts.memory.change(|state| {
            if let Some(server) = &mut state.server {
                server.nodes.remove(name);
            }
        });
    }

    /// Stops the server if a run started it and no node fetches from it any more.
    async fn release_server(&self) -> Result<Outcome, OpError> {
        if !server_directory(&self.parts.state_dir, &self.parts.site_dir).is_dir() {
            return Ok(Outcome::default());
        }
        let _turn = self.server_turn().await?;
        let is_needed = self.parts.memory.change(|state| {
            if let Some(server) = &mut state.server {
                // Whoever was only about to be made is not.
                server.nodes.clear();
            }
            let fetching = state.fetching();
            let is_needed = !fetching.is_empty();
            match &mut state.server {
                Some(server) if is_needed => server.nodes = fetching,
                Some(_) | None => state.server = None,
            }
            is_needed
        });
        self.parts.memory.flush().await?;
        let elsewhere = self.served_elsewhere();
        if is_needed || !elsewhere.is_empty() {
            return Ok(Outcome::default());
        }
        let server = self.level_server()?;
        let found = server.find().await.map_err(OpError::operation)?;
        if !found.is_some_and(|serving| serving.for_run) {
            return Ok(Outcome::default());
        }
        server.stop().await.map_err(OpError::operation)?;
        Ok(Outcome { changed: true, ..Outcome::default() })
    }

    /// Returns the nodes of other pairs that fetch from the same server, each with what it is of.
    pub(super) fn served_elsewhere(&self) -> BTreeMap<NodeName, String> {
        let pairs = Pairs::of(&self.parts.state_dir, &self.parts.site_dir);
        pairs.served_elsewhere(self.parts.memory.path())
    }

    /// Takes the turn at the server of this site: who needs it and who stops it do not meet.
    async fn server_turn(&self) -> Result<File, OpError> {
        use rustix::fs::{FlockOperation, flock};
        let directory = server_directory(&self.parts.state_dir, &self.parts.site_dir);
        let path = directory.join("turn");
        let failed = |error: std::io::Error| OpError::io(format_args!("locking {}", path.display()), &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        let deadline = Instant::now() + LONGEST_TURN;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > deadline {
                let message = format!("another run starts or stops the server; {} is locked", path.display());
                return Err(OpError::new(ErrorClass::Locked, message));
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(file)
    }

    fn level_server(&self) -> Result<&Arc<dyn LevelServer>, OpError> {
        self.parts.server.as_ref().ok_or_else(|| OpError::permanent("this program has no server"))
    }

    /// Returns the server of this level, made to answer when it is needed first.
    ///
    /// One that is gone is started again: its port and its certificate are kept.
    pub(super) async fn serving(&self) -> Result<Serving, OpError> {
        let mut known = self.serving.lock().await;
        if let Some(serving) = known.as_ref().filter(|serving| serving.socket.exists()) {
            return Ok(serving.clone());
        }
        let serving = self.level_server()?.ensure().await.map_err(OpError::operation)?;
        *known = Some(serving.clone());
        Ok(serving)
    }

    /// Has the server of this level answer again if it is gone. Nodes tell what they became to nobody else: who waits for that
    /// would wait in vain.
    pub(super) async fn revive_server(&self) -> Result<(), OpError> {
        let _turn = self.server_turn().await?;
        let mut known = self.serving.lock().await;
        let server = self.level_server()?;
        if server.find().await.map_err(OpError::operation)?.is_none() {
            let serving = server.ensure().await.map_err(OpError::operation)?;
            if serving.started {
                let text = "the server of the site was gone while nodes were waited for; it is started again";
                self.parts.announcer.warn(Warning::new("node/server-gone", text)).await;
            }
            *known = Some(serving);
        }
        Ok(())
    }

    /// Returns what asks the server of this level.
    pub(super) async fn server_client(&self) -> Result<ServerClient, OpError> {
        Ok(ServerClient::socket(self.serving().await?.socket.clone()))
    }

    /// Returns what asks the server of this level, if it runs already.
    pub(super) async fn running_server(&self) -> Result<ServerClient, OpError> {
        let found = self.level_server()?.find().await.map_err(OpError::operation)?;
        let found = found.map(|serving| ServerClient::socket(serving.socket));
        found.ok_or_else(|| OpError::new(ErrorClass::Unreachable, "the server of its level does not run"))
    }
}

/// Returns what nodes are told to connect to, given the address they reach this machine by.
fn told_url(address: &str, port: u16) -> Result<String, OpError> {
    if address.starts_with("https://") {
        return Ok(address.to_owned());
    }
    let authority = Authority::parse(address)
        .ok_or_else(|| OpError::invalid(format!("`{address}` is neither an address nor a name")))?;
    let port = authority.port.unwrap_or(port);
    Ok(match authority.host.contains(':') {
        true => format!("https://[{}]:{port}", authority.host),
        false => format!("https://{}:{port}", authority.host),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_the_port_that_was_given_or_the_servers() {
        for (address, url) in [
            ("127.0.0.1", "https://127.0.0.1:44443"),
            ("127.0.0.1:7777", "https://127.0.0.1:7777"),
            ("lab.example:7777", "https://lab.example:7777"),
            ("fd00::1", "https://[fd00::1]:44443"),
            ("[fd00::1]", "https://[fd00::1]:44443"),
            ("[fd00::1]:7777", "https://[fd00::1]:7777"),
            ("https://lab.example:1", "https://lab.example:1"),
        ] {
            assert_eq!(told_url(address, 44443).unwrap(), url, "{address}");
        }
    }
}
