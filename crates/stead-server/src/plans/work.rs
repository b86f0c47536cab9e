//! What goes on by itself: runs are started and watched, schedules and agents fire triggers.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use stead_drivers::nodes::known_labels;
use stead_model::time::Timestamp;
use stead_model::{PlanName, RunId};
use stead_runner::clock;
use tokio::task::JoinSet;

use super::{Agents, Armed, PlanEnd, PlanHead, Plans, Run, armed, kept};
use crate::log::Log;
use crate::server::Server;

/// Processes at once; other runs wait.
const MOST_RUNNING: usize = 32;
/// Runs that have ended and are kept; their bundles stay.
const MOST_ENDED: usize = 1_000;
/// How often a run is taken up again whose process was killed.
const MOST_KILLED: u32 = 5;
/// How often is looked at times, agents and processes of others.
const TICK: Duration = Duration::from_millis(500);
/// How long a run is left alone at most that could not be worked on.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// An agent that was there before the server started has so long to come back without being new.
const COME_BACK: Duration = Duration::from_secs(60);
/// The most bytes of what a process said that are handed on.
const MOST_SAID: usize = 2_000;

/// A process of a run that has ended, and how.
type Ended = (RunId, io::Result<ExitStatus>);

impl Run {
    /// Leaves the run alone for a while, the longer the more often that was so.
    fn rest(&mut self, now: Instant) {
        let pause = TICK.saturating_mul(2_u32.saturating_pow(self.troubles)).min(LONGEST_REST);
        self.troubles += 1;
        self.rests_until = now.checked_add(pause);
    }

    fn is_resting(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

/// Returns the end of what a process said.
fn said(home: &Path) -> String {
    let text = fs::read(home.join("stderr.txt")).unwrap_or_default();
    let from = text.len().saturating_sub(MOST_SAID);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).trim().to_owned()
}

fn tell(log: &Log, run: &RunId, problem: &str) {
    let known = [("run".to_owned(), json!(run)), ("problem".to_owned(), json!(problem))];
    log.say("plan", known.into_iter().collect());
}

impl Plans {
    /// Starts and watches runs, and fires triggers, until the server stops.
    pub(crate) async fn work(&self, server: &Arc<Server>) {
        for problem in &self.problems {
            server.log.say("unusable", Map::from_iter([("problem".to_owned(), json!(problem))]));
        }
        tokio::join!(self.watch_runs(server), self.watch_triggers(server));
    }

    async fn watch_runs(&self, server: &Server) {
        let mut stopping = server.stopping();
        let mut children: JoinSet<Ended> = JoinSet::new();
        loop {
            self.look_at_runs(&server.log, &mut children);
            self.forget_old();
            tokio::select! {
                () = self.wake.notified() => {}
                Some(ended) = children.join_next() => {
                    if let Ok((run, status)) = ended {
                        self.note_end_of_process(&server.log, &run, status);
                    }
                }
                () = tokio::time::sleep(TICK) => {}
                _ = stopping.wait_for(|stopping| *stopping) => break,
            }
        }
        // Runs go on without the server.
        children.detach_all();
    }

    async fn watch_triggers(&self, server: &Server) {
        let mut stopping = server.stopping();
        let began = clock::instant();
        let (mut agents, problem) = Agents::open(&self.directory);
        if let Some(problem) = problem {
            let problem = format!("who was online is not known any more: {problem}");
            server.log.say("unusable", Map::from_iter([("problem".to_owned(), json!(problem))]));
        }
        loop {
            self.look_at_times(&server.log, clock::now()).await;
            self.look_at_agents(server, &mut agents, began.elapsed() < COME_BACK).await;
            tokio::select! {
                () = self.newly_armed.notified() => {}
                () = tokio::time::sleep(TICK) => {}
                _ = stopping.wait_for(|stopping| *stopping) => break,
            }
        }
    }

    /// Notices which runs have ended, and starts those whose turn it is.
    fn look_at_runs(&self, log: &Log, children: &mut JoinSet<Ended>) {
        let now = clock::instant();
        let mut inner = self.lock();
        let mut running = 0;
        let mut busy: BTreeSet<PlanName> = BTreeSet::new();
        let mut due: Vec<RunId> = Vec::new();
        for (id, run) in inner.runs.iter_mut().filter(|(_, run)| run.end.is_none()) {
            let home = self.runs_below.join(id.as_str());
            let looked = || Ok::<_, io::Error>((kept::end(&home)?, kept::holder(&home)?.is_some()));
            if run.is_own {
                running += 1;
            } else if !run.is_resting(now) {
                match looked() {
                    Ok((Some(end), _)) => {
                        run.end = Some(end);
                        continue;
                    }
                    Ok((None, true)) => running += 1,
                    Ok((None, false)) if run.killed >= MOST_KILLED => {
                        let error = Some(format!("its process was killed {MOST_KILLED} times"));
                        let end = PlanEnd { exit_code: 1, error };
                        if kept::write_end(&home, &end).is_ok() {
                            run.end = Some(end);
                            continue;
                        }
                    }
                    Ok((None, false)) if run.head.waits && busy.contains(&run.head.plan) => {}
                    Ok((None, false)) => due.push(id.clone()),
                    // Whether somebody works on it is not known: it may go on well.
                    Err(error) => {
                        running += 1;
                        run.trouble = Some(format!("cannot be looked at: {error}"));
                    }
                }
            }
            busy.insert(run.head.plan.clone());
        }
        for id in due.into_iter().take(MOST_RUNNING.saturating_sub(running)) {
            let Some(run) = inner.runs.get_mut(&id) else { continue };
            match self.start(&id) {
                Ok(mut child) => {
                    (run.is_own, run.is_told, run.trouble) = (true, false, None);
                    children.spawn(async move { (id, child.wait().await) });
                }
                Err(error) => {
                    let problem = format!("its process cannot be started: {error}");
                    tell(log, &id, &problem);
                    run.trouble = Some(problem);
                    run.rest(now);
                }
            }
        }
    }

    /// Starts the process of a run.
    fn start(&self, run: &RunId) -> io::Result<tokio::process::Child> {
        let home = self.home(run);
        let mut command = tokio::process::Command::new(&self.program);
        command.args(["plan", "keep", "--submission"]).arg(&home);
        command.arg("--state-dir").arg(&self.place.state).current_dir(&self.place.site);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(home.join("stderr.txt"))?);
        // A run is not of this server's group: it outlives it.
        command.process_group(0);
        command.spawn()
    }

    /// Notes how a process ended; how its run did is on the disk.
    fn note_end_of_process(&self, log: &Log, id: &RunId, status: io::Result<ExitStatus>) {
        let home = self.home(id);
        let mut inner = self.lock();
        let Some(run) = inner.runs.get_mut(id) else { return };
        (run.is_own, run.is_told) = (false, false);
        if let Ok(Some(end)) = kept::end(&home) {
            run.end = Some(end);
            return;
        }
        let Ok(status) = status else { return };
        let problem = match status.signal() {
            Some(signal) => {
                run.killed += 1;
                format!("its process was killed by signal {signal}")
            }
            // Another process works on it.
            None if status.success() => return,
            None => format!("its process cannot work on it: {}", said(&home)),
        };
        tell(log, id, &problem);
        run.trouble = Some(problem);
        run.rest(clock::instant());
    }

    /// Fires schedules whose time has come.
    async fn look_at_times(&self, log: &Log, now: Timestamp) {
        let mut fired: Vec<(PlanName, String, Timestamp)> = Vec::new();
        for armed in self.lock().armed.values_mut() {
            let plan = armed.name().clone();
            fired.extend(armed.schedules(now).into_iter().map(|(name, time)| (plan.clone(), name, time)));
        }
        for (plan, name, time) in fired {
            let id = format!("schedule:{plan}:{name}:{time}");
            let trigger = armed::trigger("schedule", id, time, ("payload", Value::Null));
            let is_done = self.fire_and_tell(log, &plan, &name, &trigger, now).await;
            if is_done && let Some(armed) = self.lock().armed.get_mut(&plan) {
                armed.mark_seen(&name, now);
            }
        }
    }

    /// Fires what agents that have come online start. While `is_early`, those that were there before are not new.
    async fn look_at_agents(&self, server: &Server, agents: &mut Agents, is_early: bool) {
        if self.lock().armed.values().any(Armed::watches_agents) {
            let connected = server.store.connected_nodes();
            let welcomes = |node: &_| {
                let labels = known_labels(&server.sources.place.state, node);
                let inner = self.lock();
                let armed = inner.armed.values();
                let fired = armed.flat_map(|armed| {
                    armed.welcomes(node, &labels).into_iter().map(|name| (armed.name().clone(), name))
                });
                fired.collect()
            };
            let found = agents.with(connected, is_early, clock::now(), welcomes);
            // What cannot be written down is noticed again.
            if found != *agents && found.save(&self.directory).is_ok() {
                *agents = found;
            }
        } else {
            agents.look_away();
        }
        let arrived = agents.arrived();
        for arrival in &arrived {
            let (plan, name, node, time) = (&arrival.plan, &arrival.trigger, &arrival.node, arrival.time);
            let id = format!("agent_online:{plan}:{name}:{node}:{time}");
            let trigger = armed::trigger("agent_online", id, time, ("agent", json!(node)));
            if self.fire_and_tell(&server.log, plan, name, &trigger, clock::now()).await {
                agents.settle(arrival);
            }
        }
        if agents.arrived() != arrived {
            // Until it is written, what has fired has its run all the same.
            agents.save(&self.directory).ok();
        }
    }

    /// Removes the oldest runs that have ended; their bundles stay, and so does what must not happen twice.
    fn forget_old(&self) {
        let old: Vec<PlanHead> = {
            let inner = self.lock();
            let ended = inner.runs.values().filter(|run| run.end.is_some());
            let surplus = ended.clone().count().saturating_sub(MOST_ENDED);
            ended.take(surplus).map(|run| run.head.clone()).collect()
        };
        for head in old {
            if self.spend_run(&head).and_then(|()| kept::remove(&self.home(&head.run_id))).is_err() {
                return;
            }
            self.lock().let_go(&head);
        }
    }
}

#[cfg(test)]
mod tests {
    use stead_model::node::wire::WireCode;
    use stead_model::plan::{Digest, Plan, PlanSubmission};

    use super::*;
    use crate::place::ServerPlace;

    fn open(state: &Path) -> Plans {
        let place = ServerPlace { site: state.to_owned(), state: state.to_owned() };
        Plans::open(&place, 1, "/bin/false".into()).unwrap()
    }

    fn submission() -> PlanSubmission {
        started_by(
            json!({"webhook": {"path": "/a", "secret": "s"}, "overlap": "queue", "min_interval": 60_000}),
        )
    }

    fn started_by(trigger: Value) -> PlanSubmission {
        let mut plan = Plan::new(PlanName::parse("p").unwrap());
        plan.triggers = serde_json::from_value(json!([trigger])).unwrap();
        PlanSubmission {
            plan_hash: plan.digest(),
            plan,
            source: None,
            vars: Default::default(),
            idempotency_key: "k".to_owned(),
            yes: false,
        }
    }

    /// Runs without a plan, which only who runs them reads.
    fn runs(state: &Path, heads: impl Iterator<Item = Value>, has_ended: bool) {
        for (number, mut head) in heads.enumerate() {
            let home = runs_below(state).join(format!("r{number:04}"));
            fs::create_dir_all(&home).unwrap();
            let known = json!({
                "run_id": format!("r{number:04}"), "plan": "p", "plan_hash": Digest::default(), "by": "ann",
                "created_at": "2026-01-01T00:00:00Z",
            });
            head.as_object_mut().unwrap().extend(known.as_object().unwrap().clone());
            fs::write(home.join("head.json"), head.to_string()).unwrap();
            if has_ended {
                fs::write(home.join("end.json"), r#"{"exit_code":0}"#).unwrap();
            }
        }
    }

    fn runs_below(state: &Path) -> std::path::PathBuf {
        state.join("server/server-1.plans/runs")
    }

    /// What must not happen twice outlives the run: its key, and what its sender called its trigger.
    #[test]
    fn old_runs_are_forgotten_and_what_must_not_happen_twice_is_not() {
        let state = tempfile::tempdir().unwrap();
        let told = json!({"trigger": {"id": "webhook:p:t:d1"}, "key": "k1"});
        let made_up = json!({"trigger": {"id": "once:p:t:x"}});
        let others = std::iter::repeat_n(json!({}), MOST_ENDED);
        runs(state.path(), [told, made_up].into_iter().chain(others), true);
        open(state.path()).forget_old();
        assert_eq!(fs::read_dir(runs_below(state.path())).unwrap().count(), MOST_ENDED);
        let plans = open(state.path());
        let inner = plans.lock();
        assert!(inner.spent.contains("webhook:p:t:d1"));
        assert!(!inner.spent.iter().any(|id| id.starts_with("once:")));
        assert_eq!(inner.keys.get("k1").unwrap().0.as_str(), "r0000");
    }

    #[test]
    fn there_are_only_so_many_runs_that_have_not_ended() {
        let state = tempfile::tempdir().unwrap();
        runs(state.path(), std::iter::repeat_n(json!({}), super::super::MOST_UNFINISHED), false);
        assert_eq!(open(state.path()).check_room().unwrap_err().code, WireCode::E105);
    }

    /// When a trigger started a run last is known from the run, also if nobody could write it down.
    #[test]
    fn the_last_run_of_a_trigger_is_known_from_the_run() {
        let state = tempfile::tempdir().unwrap();
        let now = Timestamp::parse("2026-01-01T00:00:01Z").unwrap();
        let plans = open(state.path());
        plans.arm(submission(), "ann", Timestamp::from_micros(0)).unwrap();
        let name = plans.lock().armed.values().next().unwrap().hook("/a").unwrap().0.to_owned();
        let armed = || json!({"trigger": {"id": format!("webhook:p:{name}:d1")}});
        runs(state.path(), std::iter::once(armed()), true);
        let plans = open(state.path());
        let since = plans.lock().armed.values().next().unwrap().since(&name, now);
        assert_eq!(since, Some(Duration::from_secs(1)));
    }

    /// Section 13: a schedule has a run for each of its times, when the time has come; one that nobody was there for has none.
    #[tokio::test]
    async fn a_schedule_fires_at_its_times() {
        let state = tempfile::tempdir().unwrap();
        let at = |time: &str| Timestamp::parse(&format!("2026-01-01T{time}Z")).unwrap();
        let log = Log::open(&crate::log::Destination::File(state.path().join("log"))).unwrap();
        let plans = open(state.path());
        let schedule = json!({"cron": "*/5 * * * *", "tz": "UTC", "catch_up": "none"});
        let submission = started_by(json!({"schedule": schedule, "overlap": "parallel"}));
        plans.arm(submission, "ann", at("11:57:00")).unwrap();
        for (now, started) in [
            ("11:59:59.999", None),
            ("12:00:00.2", Some("12:00:00")),
            ("12:00:00.7", None),
            ("12:04:59", None),
            ("12:05:00", Some("12:05:00")),
            // Nobody looked for a while: what has just come fires, what was missed does not.
            ("12:30:59", Some("12:30:00")),
            ("12:34:59", None),
            ("12:46:30", None),
            ("12:50:00", Some("12:50:00")),
        ] {
            let before: BTreeSet<RunId> = plans.lock().runs.keys().cloned().collect();
            plans.look_at_times(&log, at(now)).await;
            let inner = plans.lock();
            let new: Vec<&Run> =
                inner.runs.values().filter(|run| !before.contains(&run.head.run_id)).collect();
            let ids: Vec<&str> = new.iter().filter_map(|run| run.head.trigger_id()).collect();
            let ends: Vec<String> = started.iter().map(|time| format!(":{}", at(time))).collect();
            assert_eq!(ids.len(), ends.len(), "{now}: {ids:?}");
            assert!(ids.iter().zip(&ends).all(|(id, end)| id.ends_with(end.as_str())), "{now}: {ids:?}");
        }
        // What has fired is not looked at again, whatever becomes of its runs.
        assert!(plans.lock().armed.values_mut().all(|armed| armed.schedules(at("12:50:30")).is_empty()));
    }

    #[test]
    fn a_run_is_left_alone_the_longer_the_more_often_it_could_not_be_worked_on() {
        let head = serde_json::from_value(json!({
            "run_id": "r", "plan": "p", "plan_hash": Digest::default(), "by": "ann",
            "created_at": "2026-01-01T00:00:00Z",
        }));
        let mut run = Run::new(head.unwrap(), None);
        let now = clock::instant();
        let rests: Vec<u128> = (0..9)
            .map(|_| {
                run.rest(now);
                (run.rests_until.unwrap() - now).as_millis()
            })
            .collect();
        assert_eq!(rests, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert!(run.is_resting(now) && !run.is_resting(now + LONGEST_REST));
    }
}
