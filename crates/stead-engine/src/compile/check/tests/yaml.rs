//! Plan files from their text to the checked plan: what the front door and the checks say together.

use stead_model::diagnostic::Source;

use super::*;
use crate::compile::{Inputs, VarFlag, plan_file};

fn compile_text(text: &str) -> Result<CompiledPlan, Diagnostics> {
    let source = Source { name: "plan.yaml".into(), text: text.into() };
    let inputs = Inputs {
        vars: vec![VarFlag::parse("ticket=T-1").unwrap()],
        env: BTreeMap::from([("DEPLOY_USER".to_owned(), "ann".to_owned())]),
        ..Inputs::default()
    };
    plan_file(&source, &inputs, &catalogue())
}

const HEAD: &str = "api_version: v1\nname: web\nvars: {ticket: null}\n";

/// The example of plans section 10 is a plan without problems.
#[test]
fn the_example_of_the_contract_compiles() {
    let text = r#"
api_version: v1
name: web
vars: {version: "1.27", start: true, mirrors: {eu: a.example, us: b.example}, ticket: null}   # null: must be given
env: [DEPLOY_USER]
secrets: {api_key: {env: API_KEY}}
defaults: {target: "role:web", timeout: 5m, retry: {times: 2, backoff: exponential}}
tasks:
  - {name: probe, for_each: "{{ vars.mirrors }}", target: local, exec: [curl, -fsS, "https://{{ item.value }}/ok"], changed_when: "false"}
  - name: roll
    depends_on: probe
    canary: 1
    batch: "25%"
    sequence:
      - {name: install, op: command.exec, params: {command: apt-get, args: [install, -y, "nginx={{ vars.version }}*"]}}
      - {name: healthy, op: command.shell, params: {script: 'curl -fsS -H "X-Key: $KEY" localhost/health', env: {KEY: "{{ secrets.api_key }}"}}}
  - {name: announce, target: local, depends_on: roll, only_if_changed: true, when: "vars.start", shell: "echo {{ vars.ticket | quote }} done"}
finally:
  - {name: alert, target: local, when: "run.status != 'success'", exec: [logger, "web failed"]}
"#;
    let compiled = compile_text(text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(compiled.warnings, []);
    let names: Vec<&str> = compiled.plan.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["probe[eu]", "probe[us]", "roll", "announce", "alert"]);
    assert_eq!(compiled.graph.dependencies(TaskIndex(2)), [TaskIndex(0), TaskIndex(1)]);
}

/// Case 3: a 3-cycle, a self-edge, a duplicate name, `depnds_on`, an unknown dependency and a duration without unit
/// are all located at once.
#[test]
fn six_different_problems_of_a_file_are_located_at_once() {
    let text = format!(
        "{HEAD}tasks:
  - {{name: a, depends_on: c, exec: [x]}}
  - {{name: b, depends_on: a, exec: [x]}}
  - {{name: c, depends_on: b, exec: [x]}}
  - {{name: s, depends_on: s, exec: [x]}}
  - {{name: d, exec: [x]}}
  - {{name: d, exec: [x]}}
  - {{name: e, depnds_on: a, exec: [x]}}
  - {{name: f, depends_on: [d, nope], exec: [x]}}
  - {{name: g, timeout: 30, exec: [x]}}
"
    );
    let problems = compile_text(&text).map(|compiled| compiled.hash).unwrap_err();
    let found: Vec<(u32, &str)> =
        problems.iter().filter_map(|problem| Some((problem.place.location().1?.0, problem.code))).collect();
    assert_eq!(
        found,
        [
            (5, "plan/cycle"),
            (8, "plan/cycle"),
            (10, "plan/duplicate-task"),
            (11, "plan/unknown-key"),
            (12, "plan/unknown-dependency"),
            (13, "plan/bad-value"),
        ],
        "{problems}"
    );
    assert!(problems.0[0].message.contains("a -> b -> c -> a"), "{problems}");
    // The very word that names nothing.
    assert_eq!(problems.0[4].place.location().1, Some((12, 31)));
}

/// Cases 13 and 29 (in part): names and secrets are refused where they stand in the file.
#[test]
fn names_and_secrets_are_located_in_the_file() {
    let text = format!(
        "{HEAD}secrets: {{key: {{env: KEY}}}}
tasks:
  - {{name: x, exec: [x]}}
  - name: t
    when:
      - vars.ticket == ''
      - any: [results.x.changed, env.HOME == '']
    exec: [curl, -k, '{{{{ secrets.key }}}}']
"
    );
    let problems = compile_text(&text).map(|compiled| compiled.hash).unwrap_err();
    let found: Vec<(u32, &str)> =
        problems.iter().filter_map(|problem| Some((problem.place.location().1?.0, problem.code))).collect();
    assert_eq!(
        found,
        [(10, "plan/not-upstream"), (10, "plan/undeclared"), (11, "plan/secret-in-argv")],
        "{problems}"
    );
}

#[test]
fn a_bad_schedule_is_told_once() {
    let text = format!("{HEAD}triggers: [{{schedule: {{cron: '0 0 31 2 *', tz: Nowhere}}}}]\ntasks: []\n");
    let problems = compile_text(&text).map(|compiled| compiled.hash).unwrap_err();
    assert_eq!(problems.0.len(), 2, "{problems}");
}
