//! Reports that other programs read, and logs that are whole.

use std::fs;
use std::process::Command;

use quick_xml::Reader;
use quick_xml::events::Event;

use super::lab::{Lab, program, task};

/// Errors, reasons and names with everything that XML, DOT and Markdown trip over.
const NASTY: &str = r#"api_version: v1
name: nasty
on_error: continue
tasks:
  - {name: fails, op: assert, params: {that: ["false"], message: "<&\"']]> \u0001\u001b[31m\u0000\uFFFE | ` $(x) \\ end"}}
  - {name: skips, depends_on: fails, shell: "true"}
  - {name: guarded, when: {expr: "false", reason: "<&\" \u0007 -> \\\" ]"}, shell: "true"}
  - {name: prints, shell: "printf '<&\"\\001\\377\\n' >&2; exit 7"}
  - {name: many, target: [h1, h2], shell: "test $STEAD_HOST = h1"}
  - {name: good, exec: ["true"]}
"#;
const HOSTS: &str = "{api_version: v1, hosts: {h1: {transport: local}, h2: {transport: local}}}";

fn nasty() -> Lab {
    let lab = Lab::new(NASTY);
    lab.write("inventory.yaml", HOSTS);
    lab
}

/// Case 28: JUnit is read by two real parsers; each task, or each task and host, is one case.
#[test]
fn junit_is_read_by_real_parsers() {
    let lab = nasty();
    lab.plan(&["--junit", "j.xml", "--markdown", "m.md", "--run-id", "r1"]).exits(1);
    let text = lab.read("j.xml");
    let mut reader = Reader::from_str(&text);
    let (mut cases, mut inside, mut found) = (Vec::new(), String::new(), Vec::new());
    loop {
        let event = reader.read_event().unwrap();
        if event == Event::Eof {
            break;
        }
        let (Event::Start(element) | Event::Empty(element)) = &event else { continue };
        let name = element.name().as_ref().to_owned();
        let attribute = |wanted: &str| {
            let found = element.attributes().map(Result::unwrap).find(|one| one.key.as_ref() == wanted);
            found.map(|one| one.normalized_value(quick_xml::XmlVersion::Implicit1_0).unwrap().into_owned())
        };
        match name.as_str() {
            "testcase" => {
                inside = attribute("name").unwrap();
                cases.push(inside.clone());
            }
            "failure" | "error" | "skipped" => {
                found.push((inside.clone(), name, attribute("message").unwrap()))
            }
            _ => {}
        }
    }
    assert_eq!(cases, ["fails", "skips", "guarded", "prints", "many@h1", "many@h2", "good"]);
    let kinds: Vec<(&str, &str)> =
        found.iter().map(|(case, kind, _)| (case.as_str(), kind.as_str())).collect();
    assert_eq!(
        kinds,
        [
            ("fails", "failure"),
            ("skips", "skipped"),
            ("guarded", "skipped"),
            ("prints", "failure"),
            ("many@h2", "failure")
        ]
    );
    let message = &found[0].2;
    assert!(message.contains("<&\"']]>") && message.contains("| ` $(x) \\ end"), "{message}");
    assert!(!message.contains('\u{1}') && !message.contains('\u{1b}'), "{message:?}");
    if let Some(xmllint) = program("xmllint") {
        let checked = Command::new(xmllint).arg("--noout").arg(lab.path("j.xml")).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    let table = lab.read("m.md");
    assert!(table.lines().any(|line| line.starts_with("| fails | failed |")), "{table}");
}

/// Case 28: DOT is read by Graphviz, also coloured by a run.
#[test]
fn dot_is_read_by_graphviz() {
    let lab = nasty();
    lab.plan(&["--run-id", "r1"]).exits(1);
    let Some(dot) = program("dot") else { return };
    for args in [
        &["plan", "graph", "p.yaml", "--format", "dot"][..],
        &["plan", "graph", "p.yaml", "--format", "dot", "--run", "r1"],
    ] {
        let drawn = lab.run(args.iter().copied()).exits(0).stdout;
        assert!(
            drawn.starts_with("digraph \"nasty\" {\n") && drawn.contains("\"fails\" -> \"skips\";"),
            "{drawn}"
        );
        assert!(drawn.chars().all(|c| c == '\n' || !c.is_control()), "{drawn:?}");
        lab.write("g.dot", &drawn);
        let read = Command::new(&dot).args(["-Tplain"]).arg(lab.path("g.dot")).output().unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        assert!(read.stderr.is_empty(), "{}", String::from_utf8_lossy(&read.stderr));
        let plain = String::from_utf8(read.stdout).unwrap();
        let count = |kind: &str| plain.lines().filter(|line| line.starts_with(kind)).count();
        assert_eq!((count("node "), count("edge ")), (6, 1), "{plain}");
        assert_eq!(lab.run(args.iter().copied()).stdout, drawn, "the same each time");
    }
}

/// Case 28: 10 MB of output in one line: the log is whole, the events point to all of it, the result keeps its end.
#[test]
fn ten_megabytes_in_one_line_are_logged_whole() {
    const SIZE: u64 = 10_000_000;
    let lab = Lab::new(&format!(
        "{{api_version: v1, name: big, tasks: [{{name: big, shell: \"head -c {SIZE} /dev/zero | tr '\\\\0' x; echo done >&2\"}}]}}"
    ));
    let ended = lab.plan(&["--run-id", "r1", "--json", "-v"]).exits(0);
    let log = lab.bundle("r1").join("logs/big/local.1.stdout");
    let bytes = fs::read(&log).unwrap();
    assert!(bytes.len() as u64 == SIZE && bytes.iter().all(|byte| *byte == b'x'));
    let events = lab.events("r1");
    let logged: u64 = events
        .iter()
        .filter(|event| event["ev"] == "log" && event["stream"] == "stdout")
        .map(|event| event["len"].as_u64().unwrap())
        .sum();
    assert_eq!(logged, SIZE);
    let report = ended.document();
    let row = task(&report, "big");
    let kept = match row["data"]["stdout"].as_str() {
        Some(text) => text.len(),
        None => panic!("{}", row["data"].to_string().chars().take(200).collect::<String>()),
    };
    assert_eq!(kept, 1 << 20, "results keep the last 1 MiB");
    assert_eq!(row["data"]["stderr"], "done\n");
    // Long data is a file of the bundle, not a line of the journal.
    assert!(events.iter().all(|event| event.to_string().len() < 128 * 1024));
    lab.verify("r1");
}

/// Case 28: bytes that are no text, NUL and CR among them, are logged as they came.
#[test]
fn logs_keep_every_byte() {
    let lab =
        Lab::new("{api_version: v1, name: raw, tasks: [{name: raw, shell: \"cat bytes; cat bytes >&2\"}]}");
    let bytes: Vec<u8> = (0..=255u8).cycle().take(200_000).collect();
    lab.write("bytes", &bytes);
    lab.plan(&["--run-id", "r1"]).exits(0);
    for stream in ["stdout", "stderr"] {
        assert!(
            fs::read(lab.bundle("r1").join(format!("logs/raw/local.1.{stream}"))).unwrap() == bytes,
            "{stream}"
        );
    }
    lab.verify("r1");
}
