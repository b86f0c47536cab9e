use super::*;

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn job(ttl: u64) -> JobRequest {
    JobRequest {
        node: node("edge"),
        argv: vec!["true".to_owned()],
        ttl,
        timeout: None,
        idempotent: false,
        live: false,
        key: None,
        input: None,
    }
}

/// Whoever did not hear the answer asks again, also of a server that was started anew, and there is one job.
#[test]
fn a_key_stands_for_one_job() {
    let mut state = State::default();
    let keyed = JobRequest { key: Some("k1".to_owned()), ..job(60) };
    assert_eq!(state.known_by_key(&keyed), Ok(None));
    let (id, record) = state.submit(&keyed, "ann", at(0)).unwrap();
    state.apply(&record);
    assert_eq!(state.known_by_key(&keyed), Ok(Some(id.clone())));
    assert_eq!(state.known_by_key(&job(60)), Ok(None), "without a key each is another");
    let other = JobRequest { argv: vec!["false".to_owned()], ..keyed.clone() };
    assert_eq!(state.known_by_key(&other).unwrap_err().code, WireCode::E401);
    let mut rewritten = State::default();
    state.to_records().iter().for_each(|record| rewritten.apply(record));
    assert_eq!(rewritten.known_by_key(&keyed), Ok(Some(id)));
}

#[test]
fn what_a_job_reads_is_nobodys_else_and_goes_with_its_end() {
    use stead_model::node::wire::JobInput;
    let mut state = State::default();
    let secret = JobInput::new("top secret".to_owned());
    let request = JobRequest { live: true, input: Some(secret), ..job(60) };
    let (id, record) = state.submit(&request, "ann", at(0)).unwrap();
    assert!(!format!("{request:?} {record:?}").contains("secret"));
    assert!(!serde_json::to_string(&record).unwrap().contains("secret"));
    state.apply(&record);
    assert!(!state.reads(&node("edge"), &id), "nobody was given it yet");
    assert_eq!(state.readers().collect::<Vec<_>>(), [&id]);
    let (signal, record) = state.next(&node("edge"), Taken::Unsaid, at(1)).unwrap();
    assert_eq!((&signal.payload["live"], &signal.payload["input"]), (&true.into(), &true.into()));
    record.iter().for_each(|record| state.apply(record));
    assert!(state.reads(&node("edge"), &id) && !state.reads(&node("other"), &id));
    let running =
        NodeReport { id: Some(id.clone()), ..NodeReport::new(ReportKind::Job, ReportStatus::Running) };
    assert!(!state.is_progress(&node("edge"), &running), "that it runs is worth a line of the journal");
    assert!(state.is_progress(&node("edge"), &NodeReport { stdout: "x\n".to_owned(), ..running }));
    let ended = NodeReport {
        id: Some(id.clone()),
        rc: Some(0),
        ..NodeReport::new(ReportKind::Job, ReportStatus::Complete)
    };
    state.reported(&ended);
    assert_eq!(std::mem::take(&mut state.read_all), std::slice::from_ref(&id));
    assert!(!state.reads(&node("edge"), &id) && state.readers().next().is_none());
    let mut again = State::default();
    state.to_records().iter().for_each(|record| again.apply(record));
    assert!(again.readers().next().is_none());
}

impl State {
    fn submitted(&mut self, ttl: u64) -> MessageId {
        let (id, record) = self.submit(&job(ttl), "ann", at(0)).unwrap();
        self.apply(&record);
        id
    }

    fn polled(&mut self, after: Option<u64>) -> Option<MessageId> {
        let taken = after.map_or(Taken::Unsaid, Taken::UpTo);
        self.polled_at(taken, 4)
    }

    fn polled_at(&mut self, taken: Taken, seconds: i64) -> Option<MessageId> {
        let (signal, record) = self.next(&node("edge"), taken, at(seconds))?;
        record.iter().for_each(|record| self.apply(record));
        Some(signal.id)
    }

    fn reported(&mut self, report: &NodeReport) {
        for record in self.report(&node("edge"), report, at(5)).unwrap() {
            self.apply(&record);
        }
    }

    fn cancelled(&mut self, id: &MessageId, agent: AgentState) -> JobState {
        let record = self.cancel(id, agent, at(3)).unwrap();
        record.iter().for_each(|record| self.apply(record));
        self.job(id).unwrap().state
    }

    fn signalled(&mut self, kind: SignalKind) -> MessageId {
        let request = SignalRequest { kind, payload: serde_json::Map::new() };
        let (id, record) = self.signal(&node("edge"), &request, at(0)).unwrap();
        self.apply(&record);
        id
    }

    fn revoked(&mut self, before: i64) {
        let edge = node("edge");
        for record in self.revoke([(&edge, before)].into_iter(), at(before)) {
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
    state.cancelled(&id, AgentState::Connected);
    assert_eq!(state.job(&id).unwrap().state, JobState::Cancelled);
    assert_eq!(state.polled(None), None);
    assert_eq!(state.cancel(&id, AgentState::Connected, at(2)).unwrap_err().code, WireCode::E401);

    let id = state.submitted(60);
    state.polled(None);
    state.cancelled(&id, AgentState::Connected);
    let (signal, _) = state.next(&node("edge"), Taken::Unsaid, at(4)).unwrap();
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

/// The answer to an agent's first poll is lost: what it said comes again, and what was for a node before it does not.
#[test]
fn nothing_is_lost_before_the_first_was_taken_down() {
    let mut state = State::default();
    let sent = |state: &mut State, kind: SignalKind, seconds: i64| {
        let request = SignalRequest { kind, payload: serde_json::Map::new() };
        let (id, record) = state.signal(&node("edge"), &request, at(seconds)).unwrap();
        state.apply(&record);
        id
    };
    let first = sent(&mut state, SignalKind::Converge, 10);
    let fresh = Taken::NothingSince(at(9));
    assert_eq!(state.polled_at(fresh, 11), Some(first.clone()));
    assert_eq!(state.polled_at(fresh, 12), Some(first.clone()), "its answer was lost");
    assert_eq!(state.replayed().polled_at(fresh, 12), Some(first.clone()), "also over a crash");
    sent(&mut state, SignalKind::Terminate, 13);
    let told = sent(&mut state, SignalKind::Converge, 14);
    let made_again = Taken::NothingSince(at(20));
    assert_eq!(state.polled_at(made_again, 21), Some(told), "neither of the two before it");
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
        .signal(
            &node("a"),
            &SignalRequest { kind: SignalKind::Converge, payload: serde_json::Map::new() },
            at(1),
        )
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

/// Signals and jobs that were never delivered are not for the machine that comes after: its tokens are newer.
#[test]
fn what_waits_goes_with_the_tokens_of_its_machine() {
    let mut state = State::default();
    state.signalled(SignalKind::Terminate);
    let queued = state.submitted(60);
    state.revoked(10);
    assert_eq!(state.job(&queued).unwrap().state, JobState::Cancelled);
    let mut again = state.replayed();
    for state in [&mut state, &mut again] {
        assert_eq!(state.polled(None), None);
        let converge = state.signalled(SignalKind::Converge);
        // The same revocation, seen again at the next reload, is not a new one.
        state.revoked(10);
        assert_eq!(state.polled(None), Some(converge));
    }
    let given = state.submitted(60);
    state.polled(None);
    state.revoked(20);
    assert_eq!(state.job(&given).unwrap().state, JobState::Lost);
    assert!(state.job(&given).unwrap().error.as_ref().unwrap().contains("revoked"));
    for record in state.revoke(std::iter::empty(), at(30)) {
        state.apply(&record);
    }
    assert!(state.revoked.is_empty(), "what the keyring does not list is not remembered");
}

/// Ids are given in their order also after the journal was rewritten: an agent takes nothing that is older than its last.
#[test]
fn what_waits_keeps_its_order_when_the_journal_is_rewritten() {
    let mut state = State::default();
    let first = state.signalled(SignalKind::Terminate);
    let second = state.submitted(60);
    let third = state.signalled(SignalKind::Converge);
    let mut again = state.replayed();
    let order: Vec<MessageId> = std::iter::from_fn(|| again.polled(None)).collect();
    assert_eq!(order, [first, second, third]);
}

/// A job whose answer was lost is given again only while it may still be begun.
#[test]
fn a_job_outlives_neither_its_lifetime_nor_its_agent() {
    let mut state = State::default();
    let id = state.submitted(10);
    state.polled(None);
    assert!(state.outlived(&node("edge"), Taken::UpTo(0), at(9)).is_empty());
    assert!(state.outlived(&node("edge"), Taken::UpTo(id.sequence()), at(99)).is_empty(), "its agent has it");
    for record in state.outlived(&node("edge"), Taken::UpTo(0), at(10)) {
        state.apply(&record);
    }
    assert_eq!(state.job(&id).unwrap().state, JobState::Expired);
    assert_eq!(state.polled(Some(0)), None);

    let timed = JobRequest { timeout: Some(5), ..job(10) };
    let (id, record) = state.submit(&timed, "ann", at(0)).unwrap();
    state.apply(&record);
    state.polled(None);
    state.reported(&of_job(&id, ReportStatus::Running, None));
    let grace = i64::try_from(GRACE_SECONDS).unwrap();
    // Given at 4, for 5 seconds.
    assert!(state.expired(at(8 + grace)).is_empty());
    assert_eq!(state.replayed(), state);
    for record in state.expired(at(9 + grace)) {
        state.apply(&record);
    }
    assert_eq!(state.job(&id).unwrap().state, JobState::Lost);
}

/// An agent is asked once to end a job; if it is not there, who asks again has the job ended without it.
#[test]
fn a_job_of_an_agent_that_is_gone_can_be_ended() {
    let mut state = State::default();
    let id = state.submitted(60);
    state.polled(None);
    assert_eq!(state.cancelled(&id, AgentState::Stale), JobState::Delivered);
    let waiting = state.nodes[&node("edge")].waiting.len();
    assert_eq!(state.cancelled(&id, AgentState::Connected), JobState::Delivered);
    assert_eq!(state.nodes[&node("edge")].waiting.len(), waiting, "it is asked once");
    assert_eq!(state.cancelled(&id, AgentState::Stale), JobState::Lost);
}

/// What a node last became is known however much it reports afterwards, also after the journal was rewritten.
#[test]
fn digests_outlive_the_reports_that_told_them() {
    let mut state = State::default();
    let digest = Some("sha256:1".to_owned());
    let complete = NodeReport {
        spec_digest: digest.clone(),
        state_digest: digest.clone(),
        ..NodeReport::new(ReportKind::Config, ReportStatus::Complete)
    };
    state.reported(&complete);
    for _ in 0..MOST_REPORTS + 2 {
        state.reported(&NodeReport::new(ReportKind::Config, ReportStatus::Failed));
    }
    for again in [state.replayed(), state.replayed().replayed()] {
        assert_eq!(again, state);
        assert_eq!(again.nodes[&node("edge")].digests(), (digest.clone(), digest.clone()));
    }
}
