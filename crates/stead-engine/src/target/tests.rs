use proptest::prelude::*;

use super::*;

fn hosts(list: &[(&str, &str)]) -> HostSet {
    HostSet::new(list.iter().map(|(name, labels)| {
        let labels = labels.split_whitespace().filter_map(|label| label.split_once('='));
        (HostName::parse(name).unwrap(), labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }))
}

fn three() -> HostSet {
    hosts(&[("a1", "role=web.x zone=a"), ("a2", "role=web"), ("b1", "role=webx zone=b")])
}

fn found(text: &str) -> String {
    let exprs: Vec<TargetExpr> = text.split('|').map(|part| TargetExpr::parse(part).unwrap()).collect();
    let found = resolve(&exprs, &three(), "seed").unwrap();
    found.iter().map(HostName::as_str).collect::<Vec<_>>().join(" ")
}

/// Reach, case 15: expressions over three hosts.
#[test]
fn expressions_find_their_hosts_in_order() {
    for (text, expected) in [
        ("role:web", "a1 a2"),
        ("b1,a*", "b1 a1 a2"),
        ("!a1", "a2 b1"),
        ("a*,!a1,a1", "a2"),
        ("role:*&!b1", "a1 a2"),
        ("a1", "a1"),
        ("local", "local"),
        ("local,a2", "local a2"),
        ("_all", "a1 a2 b1"),
        ("all", "a1 a2 b1"),
        ("_all, !a1", "a2 b1"),
        ("!role:web , _all", "b1"),
        ("role:web & !zone:a", "a2"),
        ("role:web&zone:a,b1", "a1 b1"),
        ("[!b]?", "a1 a2"),
        ("[a-b]1", "a1 b1"),
        ("*2", "a2"),
        ("role:web.x", "a1"),
        ("zone:*", "a1 b1"),
        ("role:nope", ""),
        ("a2,a1,a2", "a2 a1"),
        ("b1|a*", "b1 a1 a2"),
        ("b1|_all", "b1 a1 a2"),
        ("!local", "a1 a2 b1"),
        ("zone:a&_any", "a1"),
        ("_any&role:nope", ""),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

/// Reach, case 15: an unknown host is named with the nearest and the candidates.
#[test]
fn unknown_hosts_are_named_with_candidates() {
    let exprs = [TargetExpr::parse("nope,a3").unwrap(), TargetExpr::parse("!zz9").unwrap()];
    let errors = resolve(&exprs, &three(), "").unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "there is no host `nope`: known: a1, a2, b1, local",
            "there is no host `a3`: did you mean `a1`? known: a1, a2, b1, local",
            "there is no host `zz9`: known: a1, a2, b1, local",
        ]
    );
    assert_eq!(TargetExpr::parse("a*,role:x,c*").unwrap().unmatched(&three()), ["role:x", "c*"]);
}

/// Reach, section 5: at most twenty candidates are named, and how many more there are.
#[test]
fn of_many_hosts_twenty_are_named() {
    let names: Vec<String> = (0..25).map(|number| format!("web{number:02}")).collect();
    let hosts = hosts(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
    let errors = resolve(&[TargetExpr::parse("nope").unwrap()], &hosts, "").unwrap_err();
    let wanted = format!("there is no host `nope`: known: {} and 6 more", names[..20].join(", "));
    assert_eq!(errors[0].to_string(), wanted);
}

#[test]
fn malformed_expressions_are_refused_with_their_position() {
    for (text, at) in [
        ("", 0),
        ("a,,b", 2),
        ("a,", 2),
        ("a&&b", 2),
        ("a&", 2),
        ("!", 1),
        ("a,!", 3),
        ("a&!", 3),
        ("a:b:c", 2),
        ("a:", 2),
        (":a", 0),
        ("x,_none", 2),
        ("a b", 1),
        ("a/b", 1),
        ("-a", 0),
        ("web[", 3),
        ("web[]", 3),
        ("web[z-a]", 3),
        ("é", 0),
        ("!!a", 1),
        ("!_any", 1),
        ("role:we b", 5),
        ("a,u@h", 2),
        ("u@h,a", 0),
        ("u@h&a", 0),
        ("!u@h", 1),
        (" u@h:0", 5),
        ("ssh://h?kye=1", 8),
        ("ftp://h", 0),
        ("ssh://local", 0),
        ("ssh://local:22?agent=false", 0),
        ("ssh://all", 0),
    ] {
        match TargetExpr::parse(text) {
            Err(TargetError::Bad { position, .. }) => assert_eq!(position, at, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(TargetExpr::parse("web1").unwrap().as_name(), Some("web1"));
    assert_eq!(TargetExpr::parse("web*").unwrap().as_name(), None);
}

#[test]
fn ad_hoc_hosts_are_named_by_their_address() {
    for (text, name, transport) in [
        ("ops@10.0.0.9", "ops@10.0.0.9", "ssh://ops@10.0.0.9"),
        (" ssh://ops@h:22 ", "ops@h", "ssh://ops@h"),
        ("ssh://ops@h:2222?key=/k&jump=a,b", "ops@h:2222", "ssh://ops@h:2222?key=/k&jump=a,b"),
        ("ssh://u:hunter2@h", "u@h", "ssh://u:***@h"),
        ("u@fd00::7", "u@[fd00::7]", "ssh://u@[fd00::7]"),
        ("ssh://[::1]", "[::1]", "ssh://[::1]"),
        ("_u@h?agent=false", "_u@h", "ssh://_u@h?agent=false"),
        ("ssh://ops@local", "ops@local", "ssh://ops@local"),
        ("ssh://local:2222", "local:2222", "ssh://local:2222"),
    ] {
        let expr = TargetExpr::parse(text).unwrap();
        let host = expr.ad_hoc().unwrap();
        assert_eq!((host.name.as_str(), host.transport.to_string().as_str()), (name, transport));
        assert!(!format!("{expr} {expr:?}").contains("hunter2"));
    }
    assert_eq!(TargetExpr::parse("local://").unwrap().as_name(), Some("local"));
    assert_eq!(found("b1|u@h|a*|ssh://u@h"), "b1 u@h a1 a2");
    let error = TargetExpr::parse("ssh://u:hunter2@h?kye=1").unwrap_err().to_string();
    assert!(error.contains("did you mean `key`") && !error.contains("hunter2"), "{error}");
}

/// Many names over many hosts cost about as much as there are, not the product.
#[test]
fn ten_thousand_names_over_ten_thousand_hosts_are_found_quickly() {
    let names: Vec<String> = (0..10_000).map(|i| format!("host-{i:05}")).collect();
    let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "role=web")).collect();
    let hosts = hosts(&all);
    let listed: Vec<TargetExpr> = names.iter().map(|name| TargetExpr::parse(name).unwrap()).collect();
    let began = std::time::Instant::now();
    assert_eq!(resolve(&listed, &hosts, "").unwrap().len(), 10_000);
    let excluded: Vec<String> = names.iter().take(4_000).map(|name| format!("!{name}")).collect();
    let excluded = TargetExpr::parse(&excluded.join(",")).unwrap();
    assert_eq!(resolve(&[excluded], &hosts, "").unwrap().len(), 6_000);
    // Unoptimised and on a busy machine this is far below a second; the product would be minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn any_is_one_host_the_same_again_and_spread_over_seeds() {
    let expr = [TargetExpr::parse("_any").unwrap()];
    let choose = |seed: &str| resolve(&expr, &three(), seed).unwrap();
    assert_eq!(choose("run/task"), choose("run/task"));
    let all: std::collections::BTreeSet<_> = (0..50).flat_map(|i| choose(&i.to_string())).collect();
    assert_eq!(all.len(), 3);
}

#[test]
fn another_host_takes_the_place_of_one_that_any_chose() {
    let next = |text: &str, host: &str, taken: &[&str]| {
        let exprs: Vec<TargetExpr> = text.split('|').map(|part| TargetExpr::parse(part).unwrap()).collect();
        let host = HostName::parse(host).unwrap();
        let is_taken = |other: &HostName| other == &host || taken.contains(&other.as_str());
        instead_of(&exprs, &three(), &host, &is_taken).map(|host| host.to_string())
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(next("_any", "a1", &[]), some("a2"));
    assert_eq!(next("_any", "b1", &[]), some("a1"));
    assert_eq!(next("_any", "a2", &["b1"]), some("a1"));
    assert_eq!(next("_any", "a2", &["b1", "a1"]), None);
    assert_eq!(next("role:web&_any", "a2", &[]), some("a1"));
    assert_eq!(next("_any,!a2", "a1", &[]), some("b1"));
    // Who is named, or in a set that is meant as a whole, is not replaced.
    assert_eq!(next("a1|_any", "a1", &[]), None);
    assert_eq!(next("role:web,_any", "a1", &[]), None);
    assert_eq!(next("a1", "a1", &[]), None);
}

#[test]
fn a_described_local_is_part_of_all() {
    let hosts = hosts(&[("local", "role=web"), ("a", "")]);
    let resolve = |text: &str| resolve(&[TargetExpr::parse(text).unwrap()], &hosts, "").unwrap().len();
    assert_eq!(resolve("_all"), 2);
    assert_eq!(resolve("role:web"), 1);
    assert_eq!(resolve("!a"), 1);
}

#[test]
fn globs_do_not_blow_up() {
    let name = "a".repeat(250);
    let hosts = HostSet::new([(HostName::parse(&name).unwrap(), BTreeMap::new())]);
    let expr = TargetExpr::parse(&format!("{}b", "a*".repeat(100))).unwrap();
    assert_eq!(resolve(&[expr], &hosts, "").unwrap(), []);
}

proptest! {
    #[test]
    fn parsing_never_panics_and_positions_lie_inside(text in "[a-c!&,:_*?\\[\\]@. é-]{0,16}") {
        match TargetExpr::parse(&text) {
            Ok(expr) => { let _hosts = resolve(&[expr], &three(), "s"); }
            Err(TargetError::Bad { position, .. }) => prop_assert!(position <= text.len()),
            Err(TargetError::UnknownHost { .. }) => {}
        }
    }
}

/// A list of names means each of them, also where only one is there to ask.
#[test]
fn an_expression_means_a_host_by_its_name_and_its_labels() {
    let labels = [("spec".to_owned(), "web".to_owned())].into();
    let means = |text: &str, name: &str| {
        TargetExpr::parse(text).unwrap().means(&HostName::parse(name).unwrap(), &labels)
    };
    assert!(means("spec:web", "x") && means("x&spec:web", "x") && !means("y&spec:web", "x"));
    assert!(!means("spec:db", "x") && !means("!spec:web", "x"));
    for (text, name) in
        [("web1", "web1"), ("web1,web2", "web2"), ("web*", "web9"), ("all", "x"), ("!web1", "x")]
    {
        assert!(means(text, name), "{text} {name}");
    }
    for (text, name) in [("web1", "web2"), ("local", "x"), ("role:web", "web"), ("web*,!web9", "web9")] {
        assert!(!means(text, name), "{text} {name}");
    }
    assert!(!means("ssh://root@web1", "web2"));
}
