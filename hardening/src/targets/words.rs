//! Short texts: targets, transports, schedules, expressions, addresses, lines of steps; and masking.

use std::collections::BTreeMap;

use serde_json::json;
use stead_bundle::diff::Threshold;
use stead_engine::cron::{Cron, Zone, next_fire};
use stead_engine::expr::{self, Scope};
use stead_engine::target::{HostSet, TargetExpr, resolve};
use stead_model::duration;
use stead_model::site::address::{Authority, Cidr};
use stead_model::steps::lines;
use stead_model::time::Timestamp;
use stead_model::{HostName, TransportSpec};
use stead_runner::redact::Redactor;

use super::{SECRET, Target, check_hidden, chosen, text};

pub(super) const TARGET: Target = Target {
    name: "target",
    about: "a target expression, resolved among four hosts",
    run: target,
    words: &[
        "all",
        "@role=web",
        "!",
        ",",
        "&",
        "~",
        "*",
        "web1",
        "local",
        "ssh://u@h",
        "[0:1]",
        "%50",
        "@zone!=a",
        "(",
        ")",
    ],
};

pub(super) const TRANSPORT: Target = Target {
    name: "transport",
    about: "a transport as text",
    run: transport,
    words: &[
        "ssh://",
        "local",
        "@",
        ":22",
        "?",
        "&",
        "key=",
        "password=",
        "passphrase=",
        "become=sudo",
        "become_password=",
        "jump=",
        "host_key=",
        "insecure=true",
        "agent=false",
        "connect_timeout=5s",
        "ssh_config=none",
        "env:X",
        "file:/x",
        "%40",
        "[::1]",
        "os=linux",
    ],
};

pub(super) const CRON: Target = Target {
    name: "cron",
    about: "a schedule: the first line, in the time zone of the second",
    run: cron,
    words: &["*/5", "1-5", "jan", "mon", "0 0 29 2 *", "@daily", "\nEurope/Berlin", "\nUTC", "L", "*", ","],
};

pub(super) const EXPRESSION: Target = Target {
    name: "expression",
    about: "an expression, a template and the template of a file",
    run: expression,
    words: &[
        "{{ ",
        " }}",
        "vars.n",
        "vars.list",
        "env.HOME",
        "secrets.key",
        " | default(",
        " | quote",
        " | json",
        "{% for i in ",
        "{% endfor %}",
        "{% if ",
        "{% endif %}",
        "{#",
        "#}",
        "range(",
        " ~ ",
        " in ",
        " and ",
        "not ",
        "[0]",
        "'a'",
        "1 / 0",
        " if ",
        " else ",
    ],
};

pub(super) const LINES: Target = Target {
    name: "lines",
    about: "what steps say by lines",
    run: lines,
    words: &[
        "::check ok ",
        "::check fail ",
        "::suggest ",
        "::changed true",
        "::output key=value",
        "::",
        "\t",
    ],
};

pub(super) const ADDRESS: Target = Target {
    name: "address",
    about: "addresses, prefixes, durations and times",
    run: address,
    words: &[
        "10.0.0.1/24",
        "fd00::1/64",
        "[::1]:80",
        "a.b:1",
        "1h30m",
        "500ms",
        "2026-01-02T03:04:05Z",
        "+02:00",
    ],
};

pub(super) const THRESHOLD: Target = Target {
    name: "threshold",
    about: "a threshold of a diff",
    run: threshold,
    words: &["latency.p95", "metric:", " <= ", " > ", "10%", "5ms", "=="],
};

pub(super) const REDACT: Target = Target {
    name: "redact",
    about: "masking: secrets by line, an empty line, then what is said, in pieces",
    run: redact,
    words: &["\n\n", "***", "abcd", "bcda", "abab", "\r\n"],
};

fn target(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let expr = match TargetExpr::parse(text) {
        Ok(expr) => expr,
        Err(why) => {
            assert!(!why.to_string().is_empty());
            return;
        }
    };
    let written = expr.to_string();
    let again = TargetExpr::parse(&written).unwrap_or_else(|why| panic!("{why}: {written}"));
    assert_eq!(again.to_string(), written, "an expression has one form");
    let labels = |role: &str| BTreeMap::from([("role".to_owned(), role.to_owned())]);
    let hosts = ["web1", "web2", "db1", "db2"]
        .map(|name| (HostName::parse(name).expect("a name"), labels(&name[..name.len() - 1])));
    let hosts = HostSet::new(hosts);
    drop((expr.unknown_hosts(&hosts), expr.unmatched(&hosts)));
    let (one, two) = (resolve(&[expr], &hosts, "seed"), resolve(&[again], &hosts, "seed"));
    assert_eq!(one.ok(), two.ok(), "written and read, it selects others");
}

fn transport(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(spec) = TransportSpec::parse(text) {
        let shown = spec.to_string();
        if !spec.has_literal_secret() {
            let again = TransportSpec::parse(&shown).unwrap_or_else(|why| panic!("{why}: {shown}"));
            // The port of SSH goes without saying.
            assert_eq!(again.to_string(), shown, "a transport has one form");
            assert_eq!(again.has_literal_secret(), spec.has_literal_secret());
        }
        drop((spec.address(), spec.warnings()));
    }
    if text.contains(SECRET) {
        return;
    }
    for secret in [
        format!("ssh://u:{SECRET}@{text}"),
        format!("ssh://u@h?password={SECRET}&{text}"),
        format!("u@h?{text}&become_password={SECRET}"),
    ] {
        let shown = match TransportSpec::parse(&secret) {
            Ok(spec) => format!("{spec} {spec:?} {} {:?}", spec.address(), spec.warnings()),
            Err(why) => format!("{why} {why:?}"),
        };
        check_hidden(&shown, &secret);
    }
}

fn cron(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let (line, zone) = text.split_once('\n').unwrap_or((text, "UTC"));
    let (Ok(cron), Ok(zone)) = (Cron::parse(line), Zone::parse(zone)) else { return };
    let mut after = Timestamp::parse("2026-01-02T03:04:05.678901Z").expect("a time");
    for _ in 0..3 {
        let Some(next) = next_fire(&cron, &zone, after) else { return };
        assert!(next > after, "time goes back: {line}");
        after = next;
    }
}

fn expression(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let vars =
        BTreeMap::from([("n".to_owned(), json!(3)), ("list".to_owned(), json!([1, "a", {"b": null}]))]);
    let env = BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]);
    let scope = Scope::before_run(&vars, &env);
    let told = [
        expr::evaluate_text(text, &scope).map(|value| value.to_string()),
        expr::render(text, &scope).map(|value| value.to_string()),
        expr::render_text(text, &serde_json::Map::new(), &scope),
    ];
    for problem in told.iter().filter_map(|told| told.as_ref().err()) {
        assert!(!problem.to_string().is_empty());
        assert!(problem.offset().is_none_or(|offset| offset <= text.len()), "{problem:?}");
    }
    if !expr::is_template(text) {
        assert_eq!(expr::render(text, &scope).ok(), Some(json!(text)), "plain text changes");
    }
}

fn lines(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    for line in text.lines() {
        let spoken = lines::parse(line);
        if let lines::Spoken::Check(check) = &spoken {
            drop(check.to_string());
        }
        assert!(line.starts_with("::") || spoken == lines::Spoken::Text);
    }
}

fn address(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(cidr) = Cidr::parse(text) {
        assert!(cidr.contains(cidr.address), "{text}");
        assert_eq!(Cidr::parse(&cidr.to_string()).ok(), Some(cidr));
    }
    let authority = Authority::parse(text);
    assert!(authority.is_none_or(|authority| !authority.host.is_empty() && authority.port != Some(0)));
    assert!(authority.is_none_or(|authority| format!("{:?}", authority.reach()) != ""));
    if let Some(time) = Timestamp::parse(text) {
        assert_eq!(Timestamp::parse(&time.to_string()), Some(time), "{text}");
    }
    assert!(duration::parse(text).is_err() || !text.is_empty());
}

fn threshold(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match Threshold::parse(text) {
        Ok(threshold) => assert!(Threshold::parse(&threshold.to_string()).is_ok()),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn redact(bytes: &[u8]) {
    let Some(at) = bytes.windows(2).position(|pair| pair == b"\n\n") else { return };
    let (secrets, said) = (&bytes[..at], &bytes[at + 2..]);
    let secrets: Vec<&[u8]> = secrets.split(|byte| *byte == b'\n').collect();
    let Ok(redactor) = Redactor::new(&secrets) else { return };
    let whole = redactor.redact_bytes(said).into_owned();
    // In pieces it is the same as at once.
    let mut stream = redactor.stream();
    let mut shown = Vec::new();
    let Some((size, _)) = chosen(said) else { return };
    for piece in said.chunks(usize::from(size % 7) + 1) {
        shown.extend_from_slice(&stream.push(piece));
    }
    shown.extend(stream.finish());
    assert_eq!(shown, whole, "pieces show something else than the whole");
    let mut value = json!({ String::from_utf8_lossy(said): [String::from_utf8_lossy(said), 12345] });
    redactor.redact_value(&mut value);
}
