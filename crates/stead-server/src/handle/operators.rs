//! What operators ask for: nodes, signals, jobs, manifests, the server itself.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use stead_engine::nodes::{Checked, ForHost, check_manifest};
use stead_model::node::wire::{JobRequest, JobState, SignalRequest, WireCode, WireError};
use stead_model::site::{Entry, Manifest};
use stead_model::{MessageId, NodeName, Severity, SiteKey};

use super::{Asked, Refused};
use crate::answer::{self, Answer};

fn missing(what: impl Into<String>) -> Refused {
    WireError::new(WireCode::E200, what).into()
}

impl Asked<'_> {
    pub(super) fn nodes(&mut self) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &json!({"nodes": self.server.store.statuses()})))
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
        let id = self.server.store.signal(node, &request).await?;
        self.server.note(&by, "signal", json!({"node": node, "kind": request.kind, "id": id}));
        Ok(answer::json(StatusCode::ACCEPTED, &json!({"id": id})))
    }

    pub(super) async fn submit(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let request = JobRequest::parse(&self.read_body(self.limits().body_bytes).await?)?;
        let is_known = self.server.store.follow(&request.node, 0, None).await.is_some();
        if !is_known && !self.is_in_a_manifest(&request.node) {
            return Err(missing(format!("nothing is known of node {}", request.node)));
        }
        let id = self.server.store.submit(&request, &by).await?;
        // Only the program: arguments may hold secrets.
        let program = request.argv.first();
        self.server.note(&by, "job", json!({"node": request.node, "id": id, "program": program}));
        Ok(answer::json(StatusCode::ACCEPTED, &json!({"id": id})))
    }

    pub(super) fn jobs(&mut self) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &json!({"jobs": self.server.store.jobs()})))
    }

    pub(super) fn job(&mut self, id: &MessageId) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &self.server.store.job(id)?))
    }

    pub(super) async fn cancel(&mut self, id: &MessageId) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let job = self.server.store.cancel(id).await?;
        self.server.note(&by, "cancel", json!({"node": job.node, "id": id}));
        // One that may run is over when its agent says so.
        let is_over = job.state == JobState::Cancelled;
        let status = if is_over { StatusCode::OK } else { StatusCode::ACCEPTED };
        Ok(answer::json(status, &job))
    }

    fn check(&self, manifest: &Entry<Manifest>) -> Checked {
        check_manifest(&self.snapshot.site, manifest, ForHost::default())
    }

    fn is_in_a_manifest(&self, node: &NodeName) -> bool {
        self.snapshot.site.manifests.values().any(|manifest| {
            let forest = self.check(manifest).forest;
            forest.is_some_and(|forest| forest.nodes.iter().any(|known| known.name == *node))
        })
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
        self.server.note(&by, "reload", json!({}));
        self.server.reload().await;
        Ok(answer::json(StatusCode::OK, &self.server.report()))
    }
}
