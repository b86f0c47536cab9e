use proptest::prelude::*;

use super::*;
use crate::id::MessageId;

#[test]
fn codes_have_their_statuses() {
    let listed: Vec<String> =
        WireCode::ALL.iter().map(|code| format!("{} {}", code.as_str(), code.status())).collect();
    let expected = "E100 400,E101 400,E102 405,E103 413,E104 408,E105 429,E200 404,E201 404,E202 404,E300 400,\
                    E301 401,E302 401,E303 401,E304 403,E400 422,E401 409,E500 500,E501 0";
    assert_eq!(listed.join(","), expected);
    assert_eq!(WireCode::parse("E104"), Some(WireCode::E104));
    assert_eq!(WireCode::parse("E999"), None);
    let body = br#"{"error":{"code":"E303","message":"the token is revoked"}}"#;
    assert_eq!(ErrorBody::parse(body).map(|error| error.code), Some(WireCode::E303));
}

#[test]
fn jobs_take_times_in_seconds_or_words() {
    let job = JobRequest::parse(br#"{"node":"edge","argv":["true"],"ttl":"2h","timeout":5}"#).unwrap();
    assert_eq!((job.ttl, job.timeout, job.idempotent), (7200, Some(5), false));
    assert_eq!(JobRequest::parse(br#"{"node":"edge","argv":["true"]}"#).unwrap().ttl, 3600);
    for bad in [
        r#"{"node":"edge","argv":[]}"#,
        r#"{"node":"edge","argv":[""]}"#,
        r#"{"node":"Edge","argv":["true"]}"#,
        r#"{"node":"edge","argv":["a\u0000b"]}"#,
        r#"{"node":"edge","argv":["true"],"ttl":0}"#,
        r#"{"node":"edge","argv":["true"],"ttl":-1}"#,
        r#"{"node":"edge","argv":["true"],"timeout":"soon"}"#,
        r#"{"node":"edge","argv":["true"],"shell":true}"#,
        r#"["edge"]"#,
        "",
    ] {
        assert_eq!(JobRequest::parse(bad.as_bytes()).unwrap_err().code, WireCode::E400, "{bad}");
    }
}

#[test]
fn reports_say_what_their_kind_needs() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let complete = format!(
        r#"{{"kind":"config","status":"complete","spec":"base","spec_digest":"{digest}","state_digest":"{digest}","changed":3,"duration_seconds":1.5,"new":1}}"#
    );
    assert_eq!(NodeReport::parse(complete.as_bytes()).unwrap().changed, 3);
    for bad in [
        r#"{"kind":"config","status":"complete"}"#,
        r#"{"kind":"config","status":"running"}"#,
        r#"{"kind":"job","status":"complete"}"#,
        r#"{"kind":"job","status":"complete","id":"../x"}"#,
        r#"{"kind":"config","status":"failed","spec_digest":"md5:1"}"#,
        r#"{"kind":"config","status":"failed","duration_seconds":-1}"#,
        r#"{"kind":"other","status":"failed"}"#,
    ] {
        assert_eq!(NodeReport::parse(bad.as_bytes()).unwrap_err().code, WireCode::E400, "{bad}");
    }
    let long =
        format!(r#"{{"kind":"job","status":"complete","id":"j1","stdout":"{}"}}"#, "ä".repeat(600_000));
    let cut = NodeReport::parse(long.as_bytes()).unwrap();
    assert!(cut.truncated && cut.stdout.len() <= STREAM_BYTES);
}

#[test]
fn signals_of_operators_are_no_jobs() {
    let link = SignalRequest::parse(br#"{"kind":"link","payload":{"peers":[]}}"#).unwrap();
    assert_eq!(link.kind, SignalKind::Link);
    for bad in [r#"{"kind":"job"}"#, r#"{"kind":"dance"}"#, r#"{"kind":"link","payload":[]}"#, "{}"] {
        assert_eq!(SignalRequest::parse(bad.as_bytes()).unwrap_err().code, WireCode::E400, "{bad}");
    }
}

#[test]
fn orders_and_answers_are_read_back() {
    let order = JobOrder::Run {
        job: MessageId::parse("j7").unwrap(),
        argv: vec!["true".to_owned()],
        timeout: None,
        idempotent: true,
        live: false,
        input: false,
    };
    let text = serde_json::to_string(&order).unwrap();
    assert_eq!(text, r#"{"action":"run","job":"j7","argv":["true"],"idempotent":true}"#);
    assert_eq!(serde_json::from_str::<JobOrder>(&text).unwrap(), order);
    let renewed = RenewedToken {
        token: "secret".to_owned(),
        expires_at: crate::time::Timestamp::from_micros(0),
        pins: Pins { fingerprints: vec!["AB".to_owned()], spki_pin: "sha256:cd".to_owned() },
    };
    assert!(!format!("{renewed:?}").contains("secret"));
    let text = serde_json::to_string(&renewed).unwrap();
    assert_eq!(serde_json::from_str::<RenewedToken>(&text).unwrap(), renewed);
}

#[test]
fn ids_of_messages_grow() {
    let id = MessageId::job(41);
    assert_eq!((id.as_str(), id.sequence()), ("j41", 41));
    assert!(MessageId::parse("s9").unwrap().sequence() < id.sequence());
    for bad in ["", "j", "x1", "j0", "j01", "j-1", "j12345678901234567890", "j1/..", "j1\0"] {
        assert!(MessageId::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_body_is_answered(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (_, _, _) = (JobRequest::parse(&body), NodeReport::parse(&body), SignalRequest::parse(&body));
    }
}
