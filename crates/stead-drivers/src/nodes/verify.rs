//! `node.verify`: whether a node is what it should be, seen from outside and from inside.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::json;
use stead_engine::nodes::drift::drift;
use stead_model::NodeName;
use stead_model::node::test_report::TestStatus;
use stead_model::node::{Check, Drift, NodeEntry, Observation};
use stead_model::site::ResolvedSpec;
use stead_model::site::host::DriverKind;
use stead_runner::operation::{OpContext, OpError, Outcome};
use stead_runner::transport::{Command, Transport};
use tokio::time::timeout;

use super::line::Line;
use super::link::seen_from;
use super::{NodeView, NodesSurroundings, reach};

/// How long a short question to a node may take.
const SHORT: Duration = Duration::from_secs(60);

/// What of a state is compared, each as one check.
const AREAS: [&str; 6] = ["identity", "packages", "users", "services", "security", "network"];

/// Why a node is not logged into.
const NO_SSH: &str = "the manifest sets verify_ssh to false";

impl NodesSurroundings {
    /// Compares a node with what it should be. All checks are in the result, whatever they find.
    pub(super) async fn verify(&self, cx: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let spec = self.spec_of(&node)?;
        let mut checks = self.look_at(&node, spec.as_ref()).await?;
        if node.known.is_hosting {
            checks.push(match self.check_hosting(cx, name).await {
                Ok(_) if node.hosts_with() == DriverKind::None => {
                    Check::skipped("hosting", "its driver is `none`: it makes no machines")
                }
                Ok(_) => Check::new("hosting", true, "it can make machines"),
                Err(error) => Check::new("hosting", false, error.message),
            });
        }
        let failed: Vec<String> = checks
            .iter()
            .filter(|check| check.status == TestStatus::Failed)
            .map(|check| format!("{}: {}", check.check, check.message))
            .collect();
        Ok(Outcome {
            failure: (!failed.is_empty()).then(|| OpError::permanent(failed.join("; "))),
            data: Some(json!({ "checks": checks })),
            ..Outcome::default()
        })
    }

    async fn look_at(&self, node: &NodeView<'_>, spec: Option<&ResolvedSpec>) -> Result<Vec<Check>, OpError> {
        let name = &node.node.name;
        let Some(entry) = self.entry(name) else {
            return Ok(vec![Check::new("address", false, "it was never made")]);
        };
        let mut checks = vec![match &entry.ip {
            Some(ip) => Check::new("address", true, ip.clone()),
            None => Check::new("address", false, "it has no address"),
        }];
        let peers = self.peers_of(node);
        if !self.parts.manifest.settings.verify_ssh {
            checks.push(Check::skipped("ssh", NO_SSH));
            checks.extend(match entry.jti {
                Some(_) => self.look_by_job(name, spec, &peers).await,
                None => inner_checks(spec, &peers)
                    .map(|check| Check::skipped(&check, format!("{NO_SSH}, and it has no agent to ask")))
                    .collect(),
            });
            return Ok(checks);
        }
        let transport = match self.connect(name).await {
            Ok(transport) => transport,
            Err(error) => {
                checks.push(Check::new("ssh", false, error.message));
                return Ok(checks);
            }
        };
        let user = &self.parts.site.settings.value.defaults.vm_user;
        checks.push(Check::new("ssh", true, format!("{user} may log in, the host key is the pinned one")));
        checks.push(hostname_check(&*transport, name).await);
        if spec.is_none() && peers.is_empty() {
            return Ok(checks);
        }
        let line = Line::Ssh(transport);
        match self.observe(&line, name, spec, peers.values().map(String::as_str)).await {
            Ok(seen) => checks.extend(seen_checks(spec, &peers, &seen)),
            Err(error) => checks.push(Check::new("observe", false, error.message)),
        }
        Ok(checks)
    }

    /// Has the agent of a node that is not logged into look at the node.
    async fn look_by_job(
        &self,
        name: &NodeName,
        spec: Option<&ResolvedSpec>,
        peers: &BTreeMap<NodeName, String>,
    ) -> Vec<Check> {
        let seen = async {
            let patience = self.limit(name.as_str(), |limits| limits.ssh);
            let line = self.job_line(self.running_server().await?, name, patience).await?;
            self.observe(&line, name, spec, peers.values().map(String::as_str)).await
        };
        let seen = match seen.await {
            Ok(seen) => seen,
            Err(error) => return vec![Check::new("observe", false, error.message)],
        };
        let hostname = match (&seen.state.hostname, spec) {
            (Some(found), _) => Check::new("hostname", found == name.as_str(), found.clone()),
            (None, Some(_)) => Check::new("hostname", false, "it has none"),
            (None, None) => Check::skipped("hostname", format!("{NO_SSH}, and its agent knows of no spec")),
        };
        [vec![hostname], seen_checks(spec, peers, &seen)].concat()
    }

    /// Has a node look at itself.
    pub(super) async fn observe(
        &self,
        line: &Line,
        name: &NodeName,
        spec: Option<&ResolvedSpec>,
        reach: impl IntoIterator<Item = &str>,
    ) -> Result<Observation, OpError> {
        let mut argv = vec!["config", "observe"];
        argv.extend(spec.into_iter().flat_map(|_| ["--spec", "-"]));
        argv.extend(reach.into_iter().flat_map(|place| ["--reach", place]));
        let input = spec.map(|spec| spec.to_canonical_json().into_bytes()).unwrap_or_default();
        let asking = self.ask(line, Some(name), &argv, input);
        let said = timeout(SHORT, asking)
            .await
            .map_err(|_| OpError::operation("it did not answer within 60s"))??;
        serde_json::from_slice(&said.stdout)
            .map_err(|_| OpError::operation(format!("it could not look at itself: {}", said.complaint())))
    }

    /// Returns where the peers of a node take logins, by name, as far as that is known.
    fn peers_of(&self, node: &NodeView<'_>) -> BTreeMap<NodeName, String> {
        let (forest, own) = (&self.parts.forest, self.entry(&node.node.name));
        let peers = node.node.peers.iter().filter_map(|peer| {
            let name = forest.nodes.get(*peer)?.name.clone();
            let NodeEntry { ip: Some(ip), ssh_port: Some(port), .. } = self.entry(&name)? else {
                return None;
            };
            let own = own.as_ref()?;
            let seen = ip.parse::<IpAddr>().map_or(ip, |address| seen_from(own, address).to_string());
            Some((name, place(&seen, port)))
        });
        let above = self.peers_above(node).filter_map(|peer| {
            let (ip, port) = peer.place?;
            Some((peer.name.clone(), place(&ip.to_string(), port)))
        });
        peers.chain(above).collect()
    }
}

fn place(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn hostname_check(transport: &dyn Transport, name: &NodeName) -> Check {
    match reach::run(transport, Command::new(["hostname"])).await {
        Ok(said) => {
            let found = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            let short = found.split('.').next().unwrap_or_default();
            Check::new("hostname", short == name.as_str(), found.clone())
        }
        Err(error) => Check::new("hostname", false, error.message),
    }
}

/// Returns the names of the checks that need somebody on the node.
fn inner_checks(
    spec: Option<&ResolvedSpec>,
    peers: &BTreeMap<NodeName, String>,
) -> impl Iterator<Item = String> {
    let of_spec = spec.into_iter().flat_map(|_| ["marker"].into_iter().chain(AREAS));
    let links = peers.keys().map(|peer| format!("link.{peer}"));
    ["hostname"].into_iter().chain(of_spec).map(str::to_owned).chain(links)
}

/// Returns what a node's look at itself comes to.
fn seen_checks(
    spec: Option<&ResolvedSpec>,
    peers: &BTreeMap<NodeName, String>,
    seen: &Observation,
) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(spec) = spec {
        let digest = seen.complete.as_ref().map(|marker| marker.spec_digest.as_str());
        checks.push(marker_check(spec, digest));
        checks.extend(area_checks(&drift(spec, &seen.state)));
    }
    checks.extend(peers.iter().map(|(peer, place)| link_check(peer, place, seen)));
    checks
}

fn marker_check(spec: &ResolvedSpec, found: Option<&str>) -> Check {
    let wanted = spec.digest();
    match found {
        Some(found) if found == wanted => Check::new("marker", true, wanted),
        Some(found) => Check::new("marker", false, format!("{found} is in force, not {wanted}")),
        None => Check::new("marker", false, "no spec was applied to its end"),
    }
}

/// Returns one check for each area of a state.
fn area_checks(drift: &[Drift]) -> Vec<Check> {
    let area_of = |drift: &Drift| {
        let first = drift.path.split('.').next().unwrap_or_default();
        AREAS.into_iter().find(|area| *area == first).unwrap_or("identity")
    };
    let checks = AREAS.into_iter().map(|area| {
        let own = drift.iter().filter(|drift| area_of(drift) == area);
        let texts: Vec<String> = own
            .map(|drift| format!("{} is {}, not {}", drift.path, drift.observed, drift.expected))
            .collect();
        if texts.is_empty() {
            Check::new(area, true, "as the spec wants it")
        } else {
            Check::new(area, false, texts.join("; "))
        }
    });
    checks.collect()
}

fn link_check(peer: &NodeName, place: &str, seen: &Observation) -> Check {
    let check = format!("link.{peer}");
    if !seen.peers.contains_key(peer.as_str()) {
        return Check::new(&check, false, format!("{peer} is not among its peers"));
    }
    match seen.reached.get(place) {
        Some(true) => Check::new(&check, true, format!("{place} answers")),
        Some(false) | None => Check::new(&check, false, format!("{place} does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_area_has_a_check_and_drift_is_told_where_it_is() {
        let drift =
            |path: &str| Drift { path: path.to_owned(), expected: json!(true), observed: json!(false) };
        let checks = area_checks(&[drift("packages.htop"), drift("timezone")]);
        let failed: Vec<(&str, &str)> = checks
            .iter()
            .filter(|check| check.status == TestStatus::Failed)
            .map(|check| (check.check.as_str(), check.message.as_str()))
            .collect();
        assert_eq!(checks.len(), AREAS.len());
        assert_eq!(
            failed,
            [("identity", "timezone is false, not true"), ("packages", "packages.htop is false, not true")]
        );
    }

    #[test]
    fn a_link_needs_both_to_be_known_and_reached() {
        let peer = NodeName::parse("b").unwrap();
        let mut seen = Observation {
            state: Default::default(),
            complete: None,
            peers: BTreeMap::new(),
            reached: BTreeMap::from([("127.0.0.1:1".to_owned(), true)]),
        };
        assert_eq!(link_check(&peer, "127.0.0.1:1", &seen).status, TestStatus::Failed);
        seen.peers.insert("b".to_owned(), "127.0.0.1:1".to_owned());
        assert_eq!(link_check(&peer, "127.0.0.1:1", &seen).status, TestStatus::Passed);
        assert_eq!(link_check(&peer, "127.0.0.1:2", &seen).status, TestStatus::Failed);
    }
}
