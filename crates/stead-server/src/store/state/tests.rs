use super::*;

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn job(ttl: u64) -> JobRequest {
    JobRequest { node: node("edge"), argv: vec!["true".to_owned()], ttl, timeout: None, idempotent: false }
}

impl State {
    fn submitted(&mut self, ttl: u64) -> MessageId {
        let (id, record) = self.submit(&job(ttl), "ann", at(0)).unwrap();
        self.apply(&record);
        id
    }

    fn polled(&mut self, after: Option<u64>) -> Option<MessageId> {
        let (signal, record) = self.next(&node("edge"), after)?;
        record.iter().for_each(|record| self.apply(record));
        Some(signal.id)
    }

    fn reported(&mut self, report: &NodeReport) {
        for record in self.report(&node("edge"), report, at(5)).unwrap() {
            self.apply(&record);
        }
    }

    fn replayed(&self) -> Self {
        let mut state = Self::default();
        self.to_records().iter().for_each(|record| state.apply(record));
        state
    }
}

fn of_job(id: &MessageId, status: ReportStatus, rc: Option<i32>) -> NodeReport {
    NodeReport { id: Some(id.clone()), rc, ..NodeReport::new(ReportKind::Job, status) }
}

/// Case 35: delivered once; after a lost answer again only to an agent that says what it has.
#[test]
fn a_job_is_delivered_once() {
    let mut state = State::default();
    let id = state.submitted(60);
    assert_eq!(state.polled(None), Some(id.clone()));
    assert_eq!(state.job(&id).unwrap().state, JobState::Delivered);
    assert_eq!(state.polled(None), None);
    assert_eq!(state.polled(Some(0)), Some(id.clone()), "its answer was lost");
    assert_eq!(state.polled(Some(id.sequence())), None);
    state.reported(&of_job(&id, ReportStatus::Running, None));
    assert_eq!(state.polled(Some(0)), None, "it runs");
    state.reported(&of_job(&id, ReportStatus::Complete, Some(3)));
    assert_eq!((state.job(&id).unwrap().state, state.job(&id).unwrap().rc), (JobState::Failed, Some(3)));
    state.reported(&of_job(&id, ReportStatus::Complete, Some(0)));
    assert_eq!(state.job(&id).unwrap().state, JobState::Failed, "what has ended has ended");
}

/// Case 35: cancelled while it waits, by a signal while it runs; too late after its end.
#[test]
fn jobs_are_cancelled_where_they_are() {
    let mut state = State::default();
    let id = state.submitted(60);
    state.apply(&state.cancel(&id, at(1)).unwrap().clone());
    assert_eq!(state.job(&id).unwrap().state, JobState::Cancelled);
    assert_eq!(state.polled(None), None);
    assert_eq!(state.cancel(&id, at(2)).unwrap_err().code, WireCode::E401);

    let id = state.submitted(60);
    state.polled(None);
    let order = state.cancel(&id, at(3)).unwrap();
    state.apply(&order);
    let (signal, _) = state.next(&node("edge"), None).unwrap();
    assert_eq!(signal.payload, json!({"action": "cancel", "job": id}));
    let cancelled =
        NodeReport { outcome: Some(JobOutcome::Cancelled), ..of_job(&id, ReportStatus::Failed, None) };
    state.reported(&cancelled);
    assert_eq!(state.job(&id).unwrap().state, JobState::Cancelled);
}

/// Case 35: a job whose agent does not come in time is not run.
#[test]
fn jobs_expire_while_they_wait() {
    let mut state = State::default();
    let id = state.submitted(10);
    assert!(state.expired(at(9)).is_empty());
    for record in state.expired(at(10)) {
        state.apply(&record);
    }
    assert_eq!(state.job(&id).unwrap().state, JobState::Expired);
    assert_eq!(state.polled(None), None);
}

#[test]
fn jobs_of_other_nodes_are_not_there() {
    let mut state = State::default();
    let id = state.submitted(60);
    let report = of_job(&id, ReportStatus::Complete, Some(0));
    assert_eq!(state.report(&node("other"), &report, at(1)).unwrap_err().code, WireCode::E200);
}

#[test]
fn an_agent_that_knows_more_than_the_server_still_gets_new_signals() {
    let mut state = State::default();
    let id = state.submitted(60);
    assert_eq!(state.polled(Some(500)), Some(id));
}

#[test]
fn a_state_is_made_again_from_its_records() {
    let mut state = State::default();
    let (_, signal) = state
        .signal(&node("a"), &SignalRequest { kind: SignalKind::Converge, payload: serde_json::Map::new() })
        .unwrap();
    state.apply(&signal);
    state.submitted(60);
    let ran = state.submitted(60);
    let waits = state.submitted(60);
    state.polled(None);
    state.polled(None);
    state.reported(&of_job(&ran, ReportStatus::Running, None));
    state.reported(&of_job(&ran, ReportStatus::Complete, Some(0)));
    let mut again = state.replayed();
    assert_eq!(again, state);
    assert_eq!(again.polled(None), Some(waits));
    assert!(again.submitted(1).sequence() > ran.sequence() + 2);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut state = State::default();
    for _ in 0..MOST_ENDED + 5 {
        let id = state.submitted(60);
        state.polled(None);
        state.reported(&of_job(&id, ReportStatus::Complete, Some(0)));
    }
    assert_eq!(state.jobs().count(), MOST_ENDED);
    assert_eq!(state.forgotten.len(), 5);
    assert_eq!(state.nodes[&node("edge")].reports.len(), MOST_REPORTS);
    for _ in 0..MOST_WAITING {
        state.submitted(60);
    }
    assert_eq!(state.submit(&job(1), "ann", at(0)).unwrap_err().code, WireCode::E105);
}
