//! What operators ask for: nodes, signals, jobs, manifests, the server itself.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use stead_engine::nodes::{Checked, ForHost, check_manifest};
use stead_model::node::wire::{JOB_REQUEST_BYTES, JobRequest, SignalRequest, WireCode, WireError};
use stead_model::site::{Entry, Manifest};
use stead_model::{MessageId, NodeName, Severity, SiteKey};

use super::{Asked, Refused};
use crate::answer::{self, Answer};
use crate::store::{Page, Submitted};

/// Answers with a part of a list: `next` says after what to ask for more.
fn page<T: Serialize>(name: &str, page: Page<T>) -> Answer {
    let mut document = json!({name: page.items});
    if let (Value::Object(members), Some(next)) = (&mut document, page.next) {
        members.insert("next".to_owned(), Value::from(next));
    }
    answer::json(StatusCode::OK, &document)
}

fn missing(what: impl Into<String>) -> Refused {
    WireError::new(WireCode::E200, what).into()
}

impl Asked<'_> {
    pub(super) fn nodes(&mut self, after: Option<&NodeName>) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(page("nodes", self.server.store.statuses(after)))
    }

    pub(super) async fn node(
        &mut self,
        node: &NodeName,
        after: u64,
        wait: Option<u64>,
    ) -> Result<Answer, Refused> {
        self.operator()?;
        let status = self.server.store.follow(node, after, wait.map(Duration::from_secs)).await;
        let status = status.ok_or_else(|| missing(format!("nothing is known of node {node}")))?;
        Ok(answer::json(StatusCode::OK, &status))
    }

    pub(super) async fn signal(&mut self, node: &NodeName) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let request = SignalRequest::parse(&self.read_body(self.limits().body_bytes).await?)?;
        let (server, node) = (Arc::clone(self.server), node.clone());
        // Also if its operator goes away: what is done is told and noted.
        let sending = async move {
            let id = server.store.signal(&node, &request).await?;
            let known = json!({"node": node, "kind": request.kind, "id": id});
            server.audit.note(&by, "signal", known).await.map(|()| id)
        };
        let id = self.server.see_through(sending).await??;
        Ok(answer::json(StatusCode::ACCEPTED, &json!({"id": id})))
    }

    pub(super) async fn submit(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let most = self.body_bytes(JOB_REQUEST_BYTES);
        let request = JobRequest::parse(&self.read_body(most).await?)?;
        let is_known = self.server.store.follow(&request.node, 0, None).await.is_some();
        if !is_known {
            self.refuse_unserved(&request.node)?;
        }
        let server = Arc::clone(self.server);
        let submitting = async move {
            let Submitted { id, is_new } = server.store.submit(&request, &by).await?;
            // Only the program: arguments may hold secrets.
            let mut known = json!({"node": request.node, "id": id, "program": request.argv.first()});
            if !is_new {
                // The first time may have been cut off before it was noted.
                known["again"] = json!(true);
            }
            server.audit.note(&by, "job", known).await.map(|()| id)
        };
        let id = self.server.see_through(submitting).await??;
        Ok(answer::json(StatusCode::ACCEPTED, &json!({"id": id})))
    }

    pub(super) fn jobs(&mut self, after: Option<&MessageId>) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(page("jobs", self.server.store.jobs(after)))
    }

    pub(super) async fn job(&mut self, id: &MessageId, after: u64, wait: u64) -> Result<Answer, Refused> {
        self.operator()?;
        let job = self.server.store.follow_job(id, after, Duration::from_secs(wait)).await?;
        Ok(answer::json(StatusCode::OK, &job))
    }

    pub(super) async fn cancel(&mut self, id: &MessageId) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let (server, id) = (Arc::clone(self.server), id.clone());
        let cancelling = async move {
            let job = server.store.cancel(&id).await?;
            server.audit.note(&by, "cancel", json!({"node": job.node, "id": id})).await.map(|()| job)
        };
        let job = self.server.see_through(cancelling).await??;
        // One that may run is over when its agent says so.
        let status = if job.state.is_final() { StatusCode::OK } else { StatusCode::ACCEPTED };
        Ok(answer::json(status, &job))
    }

    fn check(&self, manifest: &Entry<Manifest>) -> Checked {
        check_manifest(&self.snapshot.site, manifest, ForHost::default())
    }

    /// Refuses a node whose agent will never ask here: one that no manifest has, and one that is in another node, whose
    /// server it asks.
    fn refuse_unserved(&self, node: &NodeName) -> Result<(), Refused> {
        let mut within = None;
        for manifest in self.snapshot.site.manifests.values() {
            let Some(forest) = self.check(manifest).forest else { continue };
            for known in forest.nodes.iter().filter(|known| known.name == *node) {
                match known.parent {
                    None => return Ok(()),
                    Some(parent) => within = Some((forest.nodes[parent].name.clone(), known.depth + 1)),
                }
            }
        }
        Err(missing(match within {
            Some((parent, level)) => {
                format!(
                    "node {node} is on level {level}: its agent asks the server of {parent}, not this one"
                )
            }
            None => format!("nothing is known of node {node}"),
        }))
    }

    pub(super) fn manifests(&mut self) -> Result<Answer, Refused> {
        self.operator()?;
        let manifests: Vec<Value> = self.snapshot.site.manifests.iter()
            .map(|(name, manifest)| {
                let checked = self.check(manifest);
                let nodes = checked.forest.as_ref().map_or(0, |forest| forest.nodes.len());
                let valid = !checked.diagnostics.has_errors();
                json!({"name": name, "valid": valid, "pattern": checked.pattern.map(|pattern| pattern.word()), "nodes": nodes})
            })
            .collect();
        Ok(answer::json(StatusCode::OK, &json!({"manifests": manifests})))
    }

    pub(super) fn manifest(&mut self, name: &SiteKey) -> Result<Answer, Refused> {
        self.operator()?;
        let manifest = self.snapshot.site.manifests.get(name);
        let manifest = manifest.ok_or_else(|| missing(format!("there is no manifest {name}")))?;
        let checked = self.check(manifest);
        let problems = |severity: Severity| -> Vec<String> {
            let of = checked.diagnostics.iter().filter(|problem| problem.severity == severity);
            of.map(ToString::to_string).collect()
        };
        let nodes = checked.forest.iter().flat_map(|forest| {
            forest.order().iter().filter_map(|&at| {
                let (node, known) = (forest.nodes.get(at)?, checked.nodes.get(at)?);
                let written = manifest.value.nodes.get(node.written)?;
                let parent =
                    node.parent.and_then(|parent| forest.nodes.get(parent)).map(|parent| &parent.name);
                let peers = node.peers.iter().filter_map(|&peer| forest.nodes.get(peer));
                Some(json!({
                    "name": node.name,
                    "type": written.kind.as_ref().map(|kind| kind.value.word()),
                    "mode": known.modes.config.word(),
                    "depth": node.depth,
                    "parent": parent,
                    "peers": peers.map(|peer| &peer.name).collect::<Vec<_>>(),
                    "spec": written.spec.as_ref().map(|spec| &spec.value),
                    "spec_digest": known.spec_digest,
                    "hosting": known.is_hosting,
                }))
            })
        });
        let nodes: Vec<Value> = nodes.collect();
        let document = json!({
            "name": name,
            "valid": !checked.diagnostics.has_errors(),
            "pattern": checked.pattern.map(|pattern| pattern.word()),
            "nodes": nodes,
            "errors": problems(Severity::Error),
            "warnings": problems(Severity::Warning),
        });
        Ok(answer::json(StatusCode::OK, &document))
    }

    pub(super) fn describe(&mut self) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &self.server.report()))
    }

    pub(super) async fn reload(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let server = Arc::clone(self.server);
        let reloading = async move {
            server.audit.note(&by, "reload", json!({})).await?;
            server.reload().await;
            Ok::<_, WireError>(server.report())
        };
        let report = self.server.see_through(reloading).await??;
        Ok(answer::json(StatusCode::OK, &report))
    }

    pub(super) async fn reload_usable(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let server = Arc::clone(self.server);
        let reloading = async move {
            server.audit.note(&by, "reload", json!({})).await?;
            server.reload_usable().await.map(|()| server.report())
        };
        let report = self.server.see_through(reloading).await??;
        Ok(answer::json(StatusCode::OK, &report))
    }

    pub(super) async fn reload_keys(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let server = Arc::clone(self.server);
        let reloading = async move {
            server.audit.note(&by, "keys", json!({})).await?;
            server.reload_keys().await.map(|()| server.report())
        };
        let report = self.server.see_through(reloading).await??;
        Ok(answer::json(StatusCode::OK, &report))
    }
}
