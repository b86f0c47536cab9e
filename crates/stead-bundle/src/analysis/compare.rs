//! The captures of all roles together, and what a client saw against what a server saw.

use std::collections::{BTreeMap, BTreeSet};

use super::AnalysisOptions;
use super::samples::rounded;
use super::summary::{Capture, Comparison, RoleCaptures, SUMMARY_SCHEMA, ServiceCount, Summary};

/// Above this share of the client's mean latency the server's is remarkable.
const REMARKABLE_RATIO: f64 = 1.5;

/// Whether a role serves or asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// It serves.
    Service,
    /// It ends by itself.
    Task,
}

/// Returns the summary of what `roles` captured.
///
/// The server is the service `server`, else the first service with captures by name; the client likewise.
pub fn summarize(roles: BTreeMap<String, (RoleKind, Vec<Capture>)>, options: &AnalysisOptions) -> Summary {
    let compare = {
        let captures_of = |kind: RoleKind, name: &str| {
            let has = |(of, captures): &&(RoleKind, Vec<Capture>)| *of == kind && !captures.is_empty();
            let named = roles.get(name).filter(has);
            named.or_else(|| roles.values().find(has)).map(|(_, captures)| captures.as_slice())
        };
        let both = captures_of(RoleKind::Task, "client").zip(captures_of(RoleKind::Service, "server"));
        both.map(|(client, server)| compare(client, server))
    };
    let roles = roles.into_iter().map(|(name, (_, captures))| (name, RoleCaptures { captures }));
    Summary {
        schema: SUMMARY_SCHEMA,
        ports: options.ports.iter().copied().collect(),
        roles: roles.filter(|(_, role)| !role.captures.is_empty()).collect(),
        compare,
    }
}

fn compare(client: &[Capture], server: &[Capture]) -> Comparison {
    let packets = |captures: &[Capture]| captures.iter().map(|capture| capture.packets).sum::<u64>();
    let (asked, served) = (packets(client), packets(server));
    let drop_rate = (asked > 0).then(|| rounded(asked.saturating_sub(served) as f64 / asked as f64));
    let at_server: BTreeSet<_> = services(server).map(key).collect();
    let mut missing: BTreeMap<_, ServiceCount> = BTreeMap::new();
    for service in services(client).filter(|service| !at_server.contains(&key(service))) {
        let known =
            missing.entry(key(service)).or_insert_with(|| ServiceCount { count: 0, ..service.clone() });
        known.count += service.count;
    }
    let means = mean_latency(client).zip(mean_latency(server));
    let ratio = means.filter(|(client, _)| *client > 0.0).map(|(client, server)| server / client);
    Comparison {
        drop_rate,
        services_missing_at_server: missing.into_values().collect(),
        latency_ratio: ratio.map(rounded),
        latency_flag: ratio.is_some_and(|ratio| ratio > REMARKABLE_RATIO),
    }
}

fn services(captures: &[Capture]) -> impl Iterator<Item = &ServiceCount> {
    captures.iter().flat_map(|capture| &capture.cip.services)
}

fn key(service: &ServiceCount) -> (u8, u16, bool) {
    (service.service, service.class, service.response)
}

/// Returns the mean over all samples of `captures`.
fn mean_latency(captures: &[Capture]) -> Option<f64> {
    let samples = captures.iter().filter_map(|capture| {
        let count = capture.latency_ms.count as f64;
        Some((capture.latency_ms.mean? * count, count))
    });
    let (sum, count) = samples.fold((0.0, 0.0), |(sum, all), (total, count)| (sum + total, all + count));
    (count > 0.0).then(|| sum / count)
}
