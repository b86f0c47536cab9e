//! Templates of roles, before the run and when a role starts.

use stead_model::role::ReadyMethod;
use stead_model::{RunId, TaskName};

use super::*;

fn role(keys: &str) -> String {
    format!(
        "api_version: v1\nvars: {{rate: 500, list: [a, 'b c'], odd: '{{{{ \"{{{{ x }}}}\" }}}}'}}\nsecrets: {{key: {{env: API_KEY}}}}\n\
         agents: {{far: u@h}}\nroles:\n  s: {{kind: service, agent: far, command: [s]}}\n  t: {{command: [t]}}\n  a: {{{keys}}}\n"
    )
}

fn run_names() -> RunNames {
    let ready = json!({"addr": "1.2.3.4:5"}).as_object().cloned();
    RunNames {
        run_id: RunId::parse("r1").unwrap(),
        agent: AgentNames { host: "here".to_owned(), os: "linux".to_owned() },
        workdir: "/w/a".to_owned(),
        profile_path: None,
        roles: BTreeMap::from([(
            "s".to_owned(),
            RoleNames { host: "h".to_owned(), workdir: "/w/s".to_owned(), ready },
        )]),
        secrets: BTreeMap::from([("key".to_owned(), "hunter22".to_owned())]),
    }
}

/// What is known is rendered, what is not stays as it is written, and is filled in when the role starts.
#[test]
fn templates_are_rendered_when_what_they_use_is_known() {
    let text = role(
        "needs: [s], command: [x, '--rate={{ vars.rate }}', '{{ vars.list }}', '{{ vars.odd }}', '{{ roles.s.ready.addr }}', \
         {flag: --w, value: '{{ role.workdir }}'}, {flag: --no, value: ''}, {flag: --yes, value: true}, '{{ role.name }}{{ role.index }}', \
         '{{ run_id }}', '{{ manifest_dir }}', 7], env: {KEY: '{{ secrets.key }}', N: 1}",
    );
    let compiled = Wish::of(&text).compile().unwrap();
    let role = &compiled.run.roles["a"];
    assert_eq!(
        argv(role),
        [
            "x",
            "--rate=500",
            "a",
            "b c",
            "{{ '{' }}{ x }}",
            "{{ roles.s.ready.addr }}",
            "--w",
            "{{ role.workdir }}",
            "--yes",
            "a1",
            "{{ run_id }}",
            "/lab",
            "7",
        ]
    );
    assert_eq!(role.env_names, ["KEY", "N"]);
    let plan = &compiled.compiled.plan;
    assert!(!String::from_utf8(plan.to_json()).unwrap().contains("secrets.key"));
    let rendered = render_role(plan, "a", &run_names()).unwrap();
    assert_eq!(
        rendered.argv,
        [
            "x",
            "--rate=500",
            "a",
            "b c",
            "{{ x }}",
            "1.2.3.4:5",
            "--w",
            "/w/a",
            "--yes",
            "a1",
            "r1",
            "/lab",
            "7"
        ]
    );
    let env: Vec<(&str, &str)> = rendered.env.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        env,
        [
            ("KEY", "hunter22"),
            ("N", "1"),
            ("STEAD_ROLE", "a"),
            ("STEAD_RUN_ID", "r1"),
            ("STEAD_SEED", "0"),
            ("STEAD_WORKDIR", "/w/a")
        ]
    );
    assert!(!format!("{rendered:?} {:?}", run_names()).contains("hunter22"));
    let mut not_ready = run_names();
    not_ready.roles.get_mut("s").unwrap().ready = None;
    let error = render_role(plan, "a", &not_ready).unwrap_err();
    assert!(error.to_string().starts_with("`roles.a.command[5]`: "), "{error}");
}

#[test]
fn names_that_mean_nothing_are_refused_with_the_nearest() {
    for (keys, wanted) in [
        ("command: ['{{ var.rate }}']", "the name `var` means nothing here (help: did you mean `vars`?)"),
        ("command: ['{{ vars.rat }}']", "`vars.rat` is not declared (help: did you mean `rate`?)"),
        ("command: ['{{ env.HOME }}']", "`env.HOME` is not declared (help: add `HOME` to `env`)"),
        ("command: ['{{ secrets.key }}']", "a secret may not be used here"),
        ("command: [x], workdir: '/{{ secrets.key }}'", "a secret may not be used here"),
        (
            "command: [x], env: {A: '{{ secrets.kee }}'}",
            "`secrets.kee` is not declared (help: did you mean `key`?)",
        ),
        (
            "command: ['{{ roles.s.ready.addr }}']",
            "the role `s` need not be ready before this one (help: add `s` to `needs`)",
        ),
        ("needs: [t], command: ['{{ roles.t.ready.x }}']", "the role `t` is a task"),
        ("command: ['{{ roles.q.host }}']", "there is no role `q`"),
        ("command: ['{{ roles.s.pid }}']", "`roles.s` has no `pid`"),
        ("command: ['{{ roles[vars.rate].host }}']", "which role is meant must be written out"),
        ("command: ['{{ role.nme }}']", "`role` has no `nme` (help: did you mean `name`?)"),
        ("command: ['{{ agent.arch }}']", "`agent` has no `arch`"),
        ("command: ['{{ matrix.n }}']", "`matrix.n` is not written in the manifest"),
        ("command: ['{{ network.data_plane.target_ip }}']", "`network.data_plane.target_ip` is not written"),
        ("command: ['{{ profile.path }}']", "the manifest has no `profile`"),
        ("agent: far, command: ['{{ manifest_dir }}']", "`manifest_dir` is a directory of this machine"),
        ("command: [x], workdir: '{{ role.workdir }}'", "`role.workdir` is not known yet"),
        ("command: [x], workdir: w", "expected an absolute path"),
        ("command: ['{{ vars.rate | upcase }}']", "there is no filter `upcase`"),
        ("command: ['{{ changed() }}']", "there is no function `changed`"),
        ("command: ['{{ vars.rate']", "roles.a.command[0]"),
        ("command: ['{% if x %}']", "roles.a.command[0]"),
        ("command: [x, '{{ {\"a\": 1} }}']", "expected a text, the template gives"),
        ("command: ['{{ [] }}']", "the command is empty"),
    ] {
        let found = Wish::of(&role(keys)).problems();
        assert!(found.len() == 1 && found[0].contains(wanted), "{keys}: {found:?}");
    }
}

#[test]
fn readiness_is_written_out_and_checked() {
    let text = role(
        "kind: service, needs: [s], command: [x], ready: {method: tcp_connect, host: '{{ roles.s.host }}', port: '{{ vars.rate }}'}",
    );
    let compiled = Wish::of(&text).compile().unwrap();
    let ready = compiled.run.roles["a"].ready.clone().unwrap();
    assert_eq!(
        ready,
        json!({"method": "tcp_connect", "host": "{{ roles.s.host }}", "port": 500, "timeout_seconds": 30, "interval_ms": 100, "from": "agent"})
    );
    let rendered = render_role(&compiled.compiled.plan, "a", &run_names()).unwrap().ready.unwrap();
    let ReadyMethod::TcpConnect(address) = rendered.method else { panic!("{rendered:?}") };
    assert_eq!(address.to_string(), "h:500");
    for (ready, wanted) in [
        ("{method: tcp_connect, port: 99999}", "roles.a.ready.port"),
        ("{method: tcp_connect, timeout_seconds: -1}", "roles.a.ready.timeout_seconds"),
        ("{method: regex}", "roles.a.ready"),
        ("{method: regex, pattern: '('}", "roles.a.ready.pattern"),
        ("{method: none, port: 1}", "roles.a.ready.port"),
        ("tcp_connect", "roles.a.ready"),
    ] {
        let found = Wish::of(&role(&format!("kind: service, command: [x], ready: {ready}"))).problems();
        assert!(found.len() == 1 && found[0].contains(&format!("{wanted}: ")), "{ready}: {found:?}");
    }
}

#[test]
fn a_workdir_is_made_of_what_is_known_before_roles_start() {
    let text = role("command: [x], workdir: '/srv/{{ run_id }}/{{ agent.os }}'");
    let compiled = Wish::of(&text).compile().unwrap();
    let plan = &compiled.compiled.plan;
    assert_eq!(render_workdir(plan, "a", &run_names()).unwrap().as_deref(), Some("/srv/r1/linux"));
    assert_eq!(render_workdir(plan, "s", &run_names()).unwrap(), None);
    assert!(render_workdir(plan, "nobody", &run_names()).is_err());
}

#[test]
fn flags_of_variables_win() {
    let wish = |vars: &'static [&'static str]| {
        let text = role("command: [x, '{{ vars.rate }}']");
        Wish { vars, ..Wish::of(&text) }.compile().map(|run| argv(&run.run.roles["a"]).join(" "))
    };
    assert_eq!(wish(&["rate=7"]).unwrap(), "x 7");
    assert!(wish(&["rat=7"]).unwrap_err()[0].contains("--var rat"));
    assert!(wish(&["rate=x"]).unwrap_err()[0].contains("--var rate"));
}

#[test]
fn phases_are_named_like_tasks() {
    let longest = format!("a{}", "b".repeat(31));
    let run =
        Wish::of(&general(&format!("  {longest}: {{command: [x], repeat: 1000}}\n"))).compile().unwrap();
    assert_eq!(run.compiled.plan.tasks.len(), 2 + 2000 + 4);
    assert!(TaskName::parse(&format!("{longest}-1000_done")).is_ok());
}
