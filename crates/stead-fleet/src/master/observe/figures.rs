//! A master's figures.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use stead_engine::fleet::rollout::Phase;
use stead_runner::clock;

use super::super::figures::Figures;
use super::super::status::Shown;
use crate::metrics::Page;

/// Returns the page of figures; what is not known is left out.
pub(super) fn page(shown: Option<&Shown>, figures: &Figures) -> String {
    let mut page = Page::default();
    let leads = u8::from(figures.leads.load(Ordering::Relaxed));
    page.one("leader", "gauge", "Whether this master leads.", leads);
    page.one("heartbeats_total", "counter", "Heartbeats taken.", figures.heartbeats.get());
    let rejected = figures.rejected.get();
    page.one("heartbeat_rejected_total", "counter", "Heartbeats that said nothing new.", rejected);
    page.durations("assignment_seconds", "Waits for an assignment that ended with one.", &figures.assignment);
    page.durations("publish_seconds", "From a publication to its verdict.", &figures.publish);
    page.durations("store_txn_seconds", "Transactions of the store.", &figures.store_txn);
    if let Some(shown) = shown {
        of_cluster(&mut page, shown);
    }
    page.into_text()
}

fn of_cluster(page: &mut Page, shown: &Shown) {
    let core = &shown.core;
    page.head("generation", "gauge", "The active generation.");
    for group in &core.groups {
        let active = group.active.as_ref().map_or(0, |active| active.generation);
        page.value("generation", &[("group", group.group.as_str())], active);
    }
    page.head("head_generation", "gauge", "The newest stored generation.");
    for group in &core.groups {
        let active = group.active.as_ref().map_or(0, |active| active.generation);
        let head = group.held.as_ref().map_or(active, |held| held.generation);
        page.value("head_generation", &[("group", group.group.as_str())], head);
    }
    let percent = core.convergence_percent;
    let ratio = format!("{}.{:02}", percent / 100, percent % 100);
    page.one("convergence_ratio", "gauge", "How much is as it should be.", ratio);
    page.head("instances", "gauge", "Instances by what they are.");
    let counts = core.counts;
    for (state, count) in [
        ("converged", counts.converged),
        ("converging", counts.converging),
        ("failed", counts.failed),
        ("unschedulable", counts.unschedulable),
        ("orphan", counts.orphans),
    ] {
        page.value("instances", &[("state", state)], count);
    }
    let mut workers: BTreeMap<&str, u32> = BTreeMap::new();
    core.workers.iter().for_each(|worker| *workers.entry(worker.state).or_default() += 1);
    page.head("workers", "gauge", "Workers by state.");
    for (state, count) in workers {
        page.value("workers", &[("state", state)], count);
    }
    let held = core.rollouts.iter().filter(|rollout| rollout.state == Phase::Held).count();
    page.one("rollout_held", "gauge", "Rollouts that stopped.", held);
    page.one("brake_active", "gauge", "Whether nothing goes elsewhere.", u8::from(core.brake.active));
    let last_poll = shown.pipeline.as_ref().map(|report| report.watcher.last_poll).filter(|at| *at > 0);
    if let Some(at) = last_poll {
        let now = u64::try_from(clock::now().as_micros() / 1_000).unwrap_or(0);
        let age = now.saturating_sub(at) / 1_000;
        page.one("last_poll_age_seconds", "gauge", "Since the ref was last looked at.", age);
    }
}
