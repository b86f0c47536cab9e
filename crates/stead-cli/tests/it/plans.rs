//! Plans as text, JSON and graphs.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use stead_cli::render::{graph, show};
use stead_model::plan::{
    Action, Digest, Expression, Function, Guard, OnlyIfChanged, Part, Section, Settings, TriggerRule,
};
use stead_model::{Op, OperationName, Plan, PlanName, RunStatus, Status, Task};

use crate::events::task as name;
use crate::report::{report_of, task_row};

fn part(operation: &str) -> Part {
    let op = Op { operation: OperationName::parse(operation).unwrap(), params: Default::default() };
    Part { name: None, op, when_host: vec![], changed_when: None, failed_when: None }
}

fn task(named: &str, after: &[&str], settings: Settings) -> Task {
    Task {
        name: name(named),
        section: Section::Main,
        depends_on: after.iter().map(|dependency| name(dependency)).collect(),
        action: Action::Op(Arc::new(part("command.exec"))),
        settings: Arc::new(settings),
        item: None,
        hash: Digest::default(),
    }
}

fn on(target: &str) -> Settings {
    Settings { target: vec![target.to_owned()], ..Settings::default() }
}

/// A diamond with guards, a sequence, a function, and a task for the end.
fn diamond() -> (Plan, Vec<u32>) {
    let mut plan = Plan::new(PlanName::parse("web").unwrap());
    let when = |text: &str| Guard::Expr { expr: Expression(text.into()), reason: None };
    let mut join =
        Settings { only_if_changed: OnlyIfChanged::Any, trigger_rule: TriggerRule::AllRan, ..on("role:web") };
    join.when = vec![when("vars.start"), Guard::Any(vec![when("a"), Guard::Not(Box::new(when("b")))])];
    join.confirm = Some("Sure?".to_owned());
    let mut left = task("left", &["root"], on("role:web"));
    left.action = Action::Sequence(Arc::new([part("package.present"), part("service.started")]));
    let mut right = task("right[eu]", &["root"], Settings::default());
    right.action = Action::Function(Function::default());
    let mut alert = task("alert", &[], on("local"));
    alert.section = Section::Finally;
    plan.tasks =
        vec![task("root", &[], on("local")), left, right, task("join", &["left", "right[eu]"], join), alert];
    (plan, vec![0, 1, 1, 2, 0])
}

#[test]
fn a_plan_is_shown_level_by_level() {
    let (plan, levels) = diamond();
    insta::assert_snapshot!(show::to_text(&plan, &levels), @r"
    Plan: 5 tasks, 3 levels
    Level 0:
      root [command.exec local]
    Level 1 (parallel):
      left [package.present + service.started role:web] <- root
      right[eu] [function] <- root
    Level 2:
      join [command.exec role:web] <- left, right[eu] (all_ran; only_if_changed; when: vars.start; when: (a or not (b)); confirm)
    Finally 0:
      alert [command.exec local]
    ");
    let empty = Plan::new(PlanName::parse("web").unwrap());
    assert_eq!(show::to_text(&empty, &[]), "Plan: 0 tasks, 0 levels\n");
}

/// Case 2: the diamond has 3 levels.
#[test]
fn the_json_form_has_plan_hash_and_levels() {
    let (plan, levels) = diamond();
    let document: serde_json::Value =
        serde_json::from_str(&show::to_json(&plan, Digest::default(), &levels)).unwrap();
    assert_eq!(document["plan"], "web");
    assert_eq!(document["plan_hash"], "0".repeat(64));
    assert_eq!(document["levels"], serde_json::json!([["root"], ["left", "right[eu]"], ["join"]]));
    assert_eq!(document["finally"], serde_json::json!([["alert"]]));
    assert_eq!(document["tasks"][3]["depends_on"], serde_json::json!(["left", "right[eu]"]));
    assert_eq!(document["compiled"], serde_json::to_value(&plan).unwrap());
}

#[test]
fn graphs_are_in_plan_order() {
    let (plan, _) = diamond();
    insta::assert_snapshot!(graph::to_dot(&plan, None), @r#"
    digraph "web" {
      "root";
      "left";
      "right[eu]";
      "join";
      "alert" [style="dashed"];
      "root" -> "left";
      "root" -> "right[eu]";
      "left" -> "join";
      "right[eu]" -> "join";
    }
    "#);
    let report = report_of(
        RunStatus::Failed,
        vec![task_row("root", Status::Changed), task_row("left", Status::Failed)],
    );
    insta::assert_snapshot!(graph::to_mermaid(&plan, Some(&report)), @r#"
    flowchart LR
      t0["root"]:::changed
      t1["left"]:::failed
      t2["right[eu]"]
      t3["join"]
      t4["alert"]
      t0 --> t1
      t0 --> t2
      t1 --> t3
      t2 --> t3
      classDef changed fill:#8fd19e,stroke:#333,color:#000
      classDef failed fill:#f28b82,stroke:#333,color:#000
    "#);
}

/// Case 28: DOT parses in the real parser.
#[test]
fn graphviz_accepts_the_graph() {
    let (plan, _) = diamond();
    let statuses = Status::ALL.iter().zip(&plan.tasks);
    let rows = statuses.map(|(status, task)| task_row(task.name.as_str(), *status)).collect();
    let report = report_of(RunStatus::Failed, rows);
    for dot in [graph::to_dot(&plan, None), graph::to_dot(&plan, Some(&report))] {
        let child = Command::new("dot")
            .arg("-Tplain")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("dot is not installed: graphs were not checked with it");
            return;
        };
        child.stdin.take().unwrap().write_all(dot.as_bytes()).unwrap();
        let result = child.wait_with_output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let plain = String::from_utf8(result.stdout).unwrap();
        assert_eq!(plain.lines().filter(|line| line.starts_with("node ")).count(), 5, "{plain}");
        assert_eq!(plain.lines().filter(|line| line.starts_with("edge ")).count(), 4);
    }
}
