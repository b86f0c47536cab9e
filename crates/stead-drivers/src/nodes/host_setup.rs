//! A host that is there already becomes what a spec wants, over SSH; and changes of a network are confirmed by having
//! reached the machine again.

use stead_engine::nodes::ChosenHost;
use stead_model::ErrorClass;
use stead_model::node::Applied;
use stead_model::site::ResolvedSpec;
use stead_model::transport::{Jump, SshSpec, TransportSpec};
use stead_runner::operation::OpError;
use stead_runner::transport::Transport;

use super::NodesSurroundings;
use super::reached::host_way;

impl NodesSurroundings {
    /// Applies `spec` on the host of this level, or with `dry_run` says what that would change.
    ///
    /// # Errors
    /// If the host is not reached or does not answer. That the spec cannot be applied there is no error:
    /// [`Applied::error`] says it.
    pub async fn set_up_host(&self, spec: &ResolvedSpec, dry_run: bool) -> Result<Applied, OpError> {
        let host = &self.parts.host;
        let way = self.way_to_host(host).await?;
        let connect = || async {
            let found = self.parts.connect.connect(&way).await;
            found.map_err(|error| {
                OpError::new(error.class(), format!("{} was not reached: {error}", host.name))
            })
        };
        let transport = connect().await?;
        let mut argv = vec!["config", "apply", "--mode", "push", "--spec", "-", "--events", "-"];
        argv.extend(dry_run.then_some("--dry-run"));
        let said = self.on_node(&*transport, &argv, spec.to_canonical_json().into_bytes()).await?;
        let lines = String::from_utf8_lossy(&said.stdout);
        let applied = lines.lines().rev().find_map(|line| serde_json::from_str::<Applied>(line).ok());
        let applied = applied.ok_or_else(|| OpError::operation(said.complaint()))?;
        if applied.unconfirmed.is_some() {
            drop(transport);
            self.confirm_network(&*connect().await?, &applied).await?;
        }
        Ok(applied)
    }

    /// Returns the way to a host: with the site's key, if it names one, as the user that was asked for.
    pub(crate) async fn way_to_host(&self, host: &ChosenHost) -> Result<TransportSpec, OpError> {
        let way = host_way(&self.parts.site, &host.host, host.user.as_deref());
        let Some(TransportSpec::Ssh(mut ssh)) = way else {
            let message = format!("host `{}` has no address: its file needs `ip`", host.name);
            return Err(OpError::invalid(message));
        };
        if self.parts.site.settings.value.defaults.ssh_key_file.is_some() {
            ssh.key = Some(self.key().await?.file.display().to_string());
        }
        Ok(TransportSpec::Ssh(ssh))
    }

    /// Returns a host as a hop on the way to what is made there.
    pub(crate) fn hop_to(&self, host: &ChosenHost) -> Option<Jump> {
        let way = host_way(&self.parts.site, &host.host, host.user.as_deref())?;
        let TransportSpec::Ssh(ssh) = way else { return None };
        let SshSpec { user, host: address, port, host_key, .. } = *ssh;
        Some(Jump { user, host: address, port, host_key })
    }

    /// Confirms a change of the network of a machine that was reached again over `transport`.
    pub(crate) async fn confirm_network(
        &self,
        transport: &dyn Transport,
        applied: &Applied,
    ) -> Result<(), OpError> {
        let Some(run) = &applied.unconfirmed else { return Ok(()) };
        let said = self.on_node(transport, &["config", "confirm", run.as_str()], Vec::new()).await?;
        match said.code {
            Some(0) => Ok(()),
            Some(_) | None => {
                let message = format!("the change of its network was not confirmed: {}", said.complaint());
                Err(OpError::new(ErrorClass::Operation, message))
            }
        }
    }
}
