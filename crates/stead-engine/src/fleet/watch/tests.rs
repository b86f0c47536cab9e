//! Branches that move, are rewritten, vanish or are not signed.

use super::*;

const POLICY: WatchPolicy = WatchPolicy { debounce: 2000, rewrites: Rewrites::Reject };

fn commit(digit: char) -> CommitId {
    CommitId::parse(&digit.to_string().repeat(40)).unwrap()
}

fn settled() -> State {
    State { accepted: Some(commit('a')), ..State::default() }
}

fn good(head: char) -> Seen {
    Seen::Inspected { head: commit(head), is_descendant: true, signature: None }
}

/// Case 2: an unchanged branch starts nothing.
#[test]
fn an_unchanged_head_is_nothing() {
    let mut state = settled();
    for now in 0..5 {
        assert_eq!(decide(&mut state, Seen::Head(commit('a')), POLICY, now), Action::None);
    }
}

#[test]
fn a_new_head_is_inspected_and_stays_before_it_is_evaluated() {
    let mut state = settled();
    assert_eq!(decide(&mut state, Seen::Head(commit('b')), POLICY, 0), Action::Inspect(commit('b')));
    assert_eq!(decide(&mut state, good('b'), POLICY, 10), Action::WaitUntil(2010));
    // A newer one comes in between: the first is never evaluated.
    assert_eq!(decide(&mut state, Seen::Head(commit('c')), POLICY, 100), Action::Inspect(commit('c')));
    assert_eq!(decide(&mut state, good('c'), POLICY, 110), Action::WaitUntil(2110));
    assert_eq!(decide(&mut state, Seen::Nothing, POLICY, 2010), Action::WaitUntil(2110));
    assert_eq!(decide(&mut state, Seen::Head(commit('c')), POLICY, 2110), Action::Evaluate(commit('c')));
    assert_eq!(decide(&mut state, Seen::Head(commit('c')), POLICY, 2111), Action::None);
    assert_eq!(state.accepted, Some(commit('c')));
}

/// F17, case 15: a rewritten branch is refused once, and allowed where the policy says so.
#[test]
fn a_rewritten_branch_is_refused() {
    let rewritten = Seen::Inspected { head: commit('0'), is_descendant: false, signature: None };
    let mut state = settled();
    let refused = decide(&mut state, rewritten.clone(), POLICY, 0);
    assert_eq!(refused, Action::RejectRewrite { old: commit('a'), new: commit('0') });
    assert_eq!(decide(&mut state, Seen::Head(commit('0')), POLICY, 1), Action::None);
    assert_eq!(state.accepted, Some(commit('a')));
    // Back where it was, nothing is refused any more; the same rewrite is, again.
    assert_eq!(decide(&mut state, Seen::Head(commit('a')), POLICY, 2), Action::None);
    assert_eq!(state.rejected, None);
    assert_eq!(decide(&mut state, Seen::Head(commit('0')), POLICY, 3), Action::Inspect(commit('0')));
    let allow = WatchPolicy { rewrites: Rewrites::Allow, debounce: 0 };
    assert_eq!(decide(&mut settled(), rewritten, allow, 0), Action::Evaluate(commit('0')));
}

/// Case 15: what is not signed does not advance the branch.
#[test]
fn a_bad_signature_does_not_advance() {
    for fault in [
        SignatureFault::Unsigned,
        SignatureFault::UnknownKey { fingerprint: "SHA256:x".to_owned() },
        SignatureFault::Bad,
    ] {
        let mut state = settled();
        let bad = BadSignature { commit: commit('1'), fault };
        let seen = Seen::Inspected { head: commit('b'), is_descendant: true, signature: Some(bad.clone()) };
        assert_eq!(decide(&mut state, seen, POLICY, 0), Action::RejectSignature(bad));
        assert_eq!(state.accepted, Some(commit('a')));
        assert_eq!(decide(&mut state, Seen::Head(commit('b')), POLICY, 1), Action::None);
        // The branch goes back, and forward to something else.
        assert_eq!(decide(&mut state, Seen::Head(commit('c')), POLICY, 2), Action::Inspect(commit('c')));
    }
}

/// F18: a branch that is gone or away changes nothing, and waits grow.
#[test]
fn what_is_gone_or_away_changes_nothing() {
    let mut state = settled();
    assert_eq!(decide(&mut state, Seen::Missing, POLICY, 0), Action::RefMissing);
    let waits: Vec<Millis> = (0..9)
        .map(|_| {
            let action = decide(&mut state, Seen::Error, POLICY, 0);
            assert_eq!(action, Action::Backoff { until: state.wait_until });
            state.wait_until
        })
        .collect();
    assert_eq!(waits, [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000]);
    assert_eq!((state.accepted.clone(), state.last_seen), (Some(commit('a')), Some(0)));
    decide(&mut state, Seen::Head(commit('a')), POLICY, 9);
    assert_eq!((state.failures, state.last_seen), (0, Some(9)));
}

/// Case 15: a lost state asks the master, and a rewrite is still refused.
#[test]
fn a_lost_state_asks_the_master() {
    let mut state = State::default();
    assert_eq!(decide(&mut state, Seen::Head(commit('0')), POLICY, 0), Action::AskMaster);
    assert_eq!(decide(&mut state, Seen::Anchor(Some(commit('a'))), POLICY, 1), Action::None);
    assert_eq!(decide(&mut state, Seen::Head(commit('0')), POLICY, 2), Action::Inspect(commit('0')));
    let seen = Seen::Inspected { head: commit('0'), is_descendant: false, signature: None };
    assert!(matches!(decide(&mut state, seen, POLICY, 3), Action::RejectRewrite { .. }));
    let mut first = State::default();
    decide(&mut first, Seen::Anchor(None), POLICY, 0);
    assert_eq!(decide(&mut first, Seen::Head(commit('0')), POLICY, 0), Action::Inspect(commit('0')));
}

/// F11: what ran out of memory or time is tried twice more, what is away without end.
#[test]
fn failures_are_tried_again_by_their_class() {
    assert_eq!(retry_at(FailureClass::Permanent, 1, 0), None);
    let resource = [1, 2, 3].map(|failures| retry_at(FailureClass::Resource, failures, 0));
    assert_eq!(resource, [Some(5_000), Some(10_000), None]);
    assert_eq!(retry_at(FailureClass::Transient, 50, 0), Some(300_000));
}
