//! `stead schema`: what editors and people check files and parameters against.

use std::path::Path;

use serde_json::{Value, json};
use stead_model::diagnostic::Source;
use stead_model::yaml::{self, Codes};

use super::Site;

fn schema(args: &[&str]) -> Value {
    Site::of("").run(&[&["schema"], args].concat()).exits(0).json()
}

/// Case 30: every operation is listed, with everything a descriptor has, its schemas closed.
#[test]
fn every_operation_is_described_with_closed_schemas() {
    let all = schema(&["operation"]);
    let names: Vec<&str> =
        all.as_array().unwrap().iter().map(|operation| operation["name"].as_str().unwrap()).collect();
    let registered: Vec<&str> =
        stead_drivers::Drivers::standard().descriptors().map(|descriptor| descriptor.name).collect();
    assert_eq!(names, registered);
    for operation in all.as_array().unwrap() {
        let name = operation["name"].as_str().unwrap();
        let mut members: Vec<&str> = operation.as_object().unwrap().keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(
            members,
            [
                "check",
                "effect",
                "idempotent",
                "name",
                "params",
                "platforms",
                "privilege",
                "result",
                "root",
                "secrets",
                "summary",
                "undo"
            ],
            "{name}"
        );
        for part in ["params", "result"] {
            assert!(jsonschema::meta::is_valid(&operation[part]), "{name}: {part}");
            assert_eq!(operation[part]["additionalProperties"], false, "{name}: {part}");
        }
        assert_eq!(schema(&["operation", name]), *operation);
    }
}

/// Section 7: a template may stand in every list and map that a parameter takes; it is judged when it is rendered.
#[test]
fn a_template_may_stand_in_every_list_and_map() {
    use stead_model::operation::ParamKind;
    let site = Site::of("  here: local\n");
    let mut asked = 0;
    for descriptor in stead_drivers::Drivers::standard().descriptors() {
        for spec in descriptor.params {
            let is_list = matches!(
                spec.kind,
                ParamKind::TextList
                    | ParamKind::NonEmptyTextList
                    | ParamKind::IntList(..)
                    | ParamKind::TextOrList
                    | ParamKind::Lines
                    | ParamKind::Addresses
            );
            let value = match (is_list, matches!(spec.kind, ParamKind::TextMap | ParamKind::Map)) {
                (true, _) => json!(["{{ run.id }}"]),
                (false, true) => json!({"a": "{{ run.id }}"}),
                (false, false) => continue,
            };
            asked += 1;
            let plan = json!({"api_version": "v1", "name": "p", "tasks": [
                {"name": "t", "op": descriptor.name, "params": {spec.name: value}}]});
            site.write("p.yaml", &plan.to_string());
            let told = site.run(&["plan", "show", "p.yaml", "--json"]);
            // Other parameters may be missing; of this one nothing is wrong.
            let place = format!("tasks[0].params.{}", spec.name);
            let document = told.json();
            assert!(matches!(told.code, Some(0 | 3)), "{document:#}");
            let problems = document["diagnostics"].as_array().cloned().unwrap_or_default();
            let about =
                |problem: &&Value| problem["path"].as_str().is_some_and(|path| path.starts_with(&place));
            let found: Vec<&Value> = problems.iter().filter(about).collect();
            assert!(found.is_empty(), "{} {}: {found:?}", descriptor.name, spec.name);
        }
    }
    assert!(asked > 30, "{asked}");
}

/// Section 7: what a value may be is judged when the plan is compiled, all problems at once.
#[test]
fn values_are_judged_before_anything_runs() {
    let cases = [
        ("sudo.rule", json!({"name": "a.b", "user": "ann"}), "name"),
        ("cron.entry", json!({"name": "a.b", "schedule": "@daily", "command": "x"}), "name"),
        ("cron.entry", json!({"name": "a", "schedule": "61 * * * *", "command": "x"}), "schedule"),
        ("sysctl.value", json!({"key": "no dots", "value": 1}), "key"),
        ("network.interface", json!({"name": "eth0", "addresses": ["10.0.0.300/24"]}), "addresses"),
        ("network.interface", json!({"name": "eth0", "mac": "52:54:00"}), "mac"),
        ("file.present", json!({"path": "/x", "content": "", "validate": ["true"]}), "validate"),
        ("file.present", json!({"path": "/x", "content_base64": "*"}), "content_base64"),
        ("package.present", json!({"names": ["nginx", "-o"]}), "names"),
        ("container.present", json!({"name": "a", "image": "b", "ports": ["80"]}), "ports"),
        ("container.present", json!({"name": "a", "image": "b", "volumes": ["x"]}), "volumes"),
        ("assert", json!({"that": ["true", "1 +"]}), "that"),
        ("file.line", json!({"path": "/x", "line": "a\nb"}), "line"),
        ("file.absent", json!({"path": "/"}), "path"),
        ("user.present", json!({"name": "Bad Name"}), "name"),
        ("timezone", json!({"zone": "../x"}), "zone"),
        ("hosts.entry", json!({"address": "10.0.0.1", "names": ["b d"]}), "names"),
        ("ssh.daemon", json!({"settings": {}, "name": "../x"}), "name"),
        ("ssh.authorized_key", json!({"user": "ann", "keys": ["garbage"]}), "keys"),
        ("http.request", json!({"url": "http://ann:pw@localhost/"}), "url"),
        ("sudo.rule", json!({"name": "a", "user": "ann", "commands": ["relative"]}), "commands"),
        ("certificate.ca", json!({"name": "a", "content": "none"}), "content"),
        ("systemd.unit", json!({"name": "a/b", "content": ""}), "name"),
        ("dns.servers", json!({"servers": ["10.0.0.1", "x"]}), "servers"),
        ("network.route", json!({"to": "x", "via": "10.0.0.1"}), "to"),
        ("network.route", json!({"to": "10.0.0.0/8", "via": "10.0.0.1", "confirm": "500ms"}), "confirm"),
        ("service.started", json!({"name": "a b"}), "name"),
        ("service.enabled", json!({"names": ["web", "-x"]}), "names"),
        ("service.restarted", json!({"name": "../x"}), "name"),
        ("systemd.unit", json!({"name": "a", "content": "", "drop_in": "x/y"}), "drop_in"),
        ("container.present", json!({"name": "-a", "image": "b"}), "name"),
        ("container.absent", json!({"name": "a/b"}), "name"),
        ("container.present", json!({"name": "a", "image": "--privileged"}), "image"),
        ("container.present", json!({"name": "a", "image": "b", "restart": "often"}), "restart"),
        ("user.present", json!({"name": "ann", "comment": "a:b"}), "comment"),
        ("user.present", json!({"name": "ann", "shell": "/bin/sh\nx"}), "shell"),
        ("user.present", json!({"name": "ann", "home": "/home:x"}), "home"),
        ("package.latest", json!({"names": ["nginx=1.0"]}), "names"),
        ("package.absent", json!({"names": ["nginx=1.0"]}), "names"),
        ("file.line", json!({"path": "/x", "line": "a\r"}), "line"),
        ("facts", json!({"only": ["os", "nope"]}), "only"),
    ];
    let tasks: Vec<Value> = cases
        .iter()
        .enumerate()
        .map(|(number, (op, params, _))| json!({"name": format!("t{number}"), "op": op, "params": params}))
        .collect();
    let site = Site::of("  here: local\n");
    site.write("p.yaml", &json!({"api_version": "v1", "name": "p", "tasks": tasks}).to_string());
    let told = site.run(&["plan", "show", "p.yaml", "--json"]).exits(3);
    let document = told.json();
    let problems = document["diagnostics"].as_array().unwrap();
    assert_eq!(problems.len(), cases.len(), "{document:#}");
    for (problem, (op, _, param)) in problems.iter().zip(&cases) {
        assert_eq!(problem["code"], "plan/bad-param", "{problem}");
        let start = format!("parameter `{param}` of `{op}`: ");
        let message = problem["message"].as_str().unwrap();
        assert!(message.starts_with(&start), "{problem}");
        // The element of the list that is wrong, not only that one is.
        if matches!(*op, "dns.servers" | "network.route") && *param != "confirm" {
            assert!(message.contains("`x`"), "{problem}");
        }
    }
}

/// Sections 7 and 8: what an operation needs under a condition is missed before anything runs, by plans and by schemas.
#[test]
fn what_is_needed_under_a_condition_is_missed_before_anything_runs() {
    let cases = [
        ("sudo.rule", json!({"name": "a"}), "`user` or `group` unless `state` is absent"),
        ("sysctl.value", json!({"key": "net.ipv4.ip_forward"}), "`value` unless `state` is absent"),
        ("cron.entry", json!({"name": "a", "command": "x"}), "`schedule` unless `state` is absent"),
        ("file.line", json!({"path": "/x", "match": "a"}), "`line` unless `state` is absent"),
        ("file.block", json!({"path": "/x", "name": "a"}), "`block` unless `state` is absent"),
        ("systemd.unit", json!({"name": "a"}), "`content` or `source` unless `state` is absent"),
        ("certificate.ca", json!({"name": "a"}), "`content` or `source` unless `state` is absent"),
        ("archive.unpacked", json!({"path": "/x", "url": "http://localhost/a"}), "`sha256` with `url`"),
    ];
    let site = Site::of("  here: local\n");
    let show = |change: &dyn Fn(&mut Value)| {
        let tasks = cases.iter().enumerate().map(|(number, (op, params, _))| {
            let mut params = params.clone();
            change(&mut params);
            json!({"name": format!("t{number}"), "op": op, "params": params})
        });
        let plan = json!({"api_version": "v1", "name": "p", "tasks": tasks.collect::<Vec<_>>()});
        site.write("p.yaml", &plan.to_string());
        site.run(&["plan", "show", "p.yaml", "--json"])
    };
    let document = show(&|_| ()).exits(3).json();
    let problems = document["diagnostics"].as_array().unwrap();
    assert_eq!(problems.len(), cases.len(), "{document:#}");
    for (number, (problem, (op, params, needs))) in problems.iter().zip(&cases).enumerate() {
        assert_eq!(problem["code"], "plan/bad-param", "{problem}");
        assert_eq!(problem["message"], format!("`{op}` needs {needs}"));
        assert_eq!(problem["path"], format!("tasks[{number}].params"));
        let schema = &schema(&["operation", op])["params"];
        assert!(!jsonschema::is_valid(schema, params), "{op}: {schema}");
        let mut params = params.clone();
        if *op == "archive.unpacked" {
            params["sha256"] = json!("0".repeat(64));
        } else {
            params["state"] = json!("absent");
        }
        assert!(jsonschema::is_valid(schema, &params), "{op}: {schema}");
    }
    // What is only known when it runs is not missed before.
    for state in ["absent", "{{ run.id }}"] {
        show(&|params| match params.get("url") {
            Some(_) => params["sha256"] = json!("{{ run.id }}"),
            None => params["state"] = json!(state),
        })
        .exits(0);
    }
}

/// Case 30: the schemas accept every example of the documentation.
#[test]
fn the_schemas_accept_every_example_of_the_documentation() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let operations = schema(&["operation"]);
    let schema_of = |name: &str| {
        let mut all = operations.as_array().unwrap().iter();
        let operation = all.find(|operation| operation["name"] == name);
        operation.unwrap_or_else(|| panic!("no operation {name}"))["params"].clone()
    };
    let (plan, inventory) = (schema(&["plan"]), schema(&["inventory"]));
    let plan = jsonschema::validator_for(&plan).unwrap();
    let inventory = jsonschema::validator_for(&inventory).unwrap();
    let (mut files, mut actions) = (0, 0);
    for entry in std::fs::read_dir(docs).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for example in examples(&std::fs::read_to_string(&path).unwrap()) {
            let source = Source { name: "example".into(), text: example.as_str().into() };
            let tree = yaml::read(&source, Codes::PLAN, &mut Default::default());
            let tree = tree.unwrap_or_else(|| panic!("{}: not YAML:\n{example}", path.display()));
            let document = tree.root().to_json();
            if document.get("tasks").is_some() && document.get("api_version").is_some() {
                assert!(plan.is_valid(&document), "{}:\n{example}", path.display());
                files += 1;
            } else if document.get("hosts").is_some() {
                assert!(inventory.is_valid(&document), "{}:\n{example}", path.display());
                files += 1;
            }
            each_action(&document, &mut |operation, given| {
                actions += 1;
                let schema = schema_of(operation);
                if !given.to_string().contains("{{") {
                    assert!(jsonschema::is_valid(&schema, given), "{}: {operation} {given}", path.display());
                    return;
                }
                // What a template becomes is not known here: the other parameters are judged one by one.
                for (name, value) in given.as_object().unwrap() {
                    let property = &schema["properties"][name];
                    assert!(property.is_object(), "{}: {operation} has no {name}", path.display());
                    let known = !value.to_string().contains("{{");
                    assert!(!known || jsonschema::is_valid(property, value), "{operation} {name}: {value}");
                }
            });
        }
    }
    assert!(files >= 3 && actions >= 5, "{files} files, {actions} actions");
}

/// What operations return is what their descriptors say, and nothing else.
#[test]
fn the_data_of_operations_fits_their_closed_result_schemas() {
    let site = Site::of("  a: local\n");
    let path = |name: &str| site.file(name).to_str().unwrap().to_owned();
    site.write("tree/one", "x");
    site.write("text", "a\n");
    let mut seen = 0;
    for (operation, params) in [
        ("command.exec", json!({"command": "true"})),
        ("command.shell", json!({"script": "echo x"})),
        ("assert", json!({"that": ["true"]})),
        ("file.directory", json!({"path": path("d")})),
        ("file.present", json!({"path": path("f"), "content": "x"})),
        ("file.present", json!({"path": path("f"), "content": "y", "backup": true})),
        ("file.line", json!({"path": path("text"), "line": "b", "backup": true})),
        ("file.block", json!({"path": path("text"), "name": "n", "block": "c\n"})),
        ("file.symlink", json!({"path": path("l"), "to": "f"})),
        ("file.template", json!({"path": path("t"), "content": "x"})),
        ("file.copy", json!({"path": path("copy"), "source": "tree"})),
        ("file.absent", json!({"path": path("copy"), "recursive": true})),
        ("wait.file", json!({"path": path("f")})),
    ] {
        let told =
            site.run(&["exec", "a", "--json", "--op", operation, "--params", &params.to_string()]).exits(0);
        let data = told.json()["results"][0]["data"].clone();
        if !data.is_null() {
            seen += 1;
            let result = schema(&["operation", operation])["result"].clone();
            assert!(jsonschema::is_valid(&result, &data), "{operation}: {data} is not {result}");
        }
    }
    assert!(seen >= 5, "{seen}");
}

/// Returns the YAML blocks of a page.
fn examples(page: &str) -> Vec<String> {
    let blocks = page.split("```yaml").skip(1).filter_map(|rest| rest.split_once('\n'));
    // A file of this name shows what is told of it.
    let good = blocks.filter(|(title, _)| !title.contains("bad.yaml")).map(|(_, rest)| rest);
    good.filter_map(|rest| rest.split_once("\n```")).map(|(block, _)| format!("{block}\n")).collect()
}

/// Calls `check` with each operation and its parameters, those in their short forms too.
fn each_action(value: &Value, check: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each_action(item, check)),
        Value::Object(fields) => {
            let mut params = fields.get("params").cloned().unwrap_or_else(|| json!({}));
            let operation = if let Some(operation) = fields.get("op").and_then(Value::as_str) {
                Some(operation)
            } else if let Some([program, args @ ..]) =
                fields.get("exec").and_then(Value::as_array).map(Vec::as_slice)
            {
                params["command"] = program.clone();
                params["args"] = args.iter().map(text).collect();
                Some("command.exec")
            } else if let Some(script) = fields.get("shell").filter(|script| script.is_string()) {
                params["script"] = script.clone();
                Some("command.shell")
            } else {
                None
            };
            if let Some(operation) = operation {
                check(operation, &params);
            }
            fields.values().for_each(|field| each_action(field, check));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns a word of a command as its text, as the reader of plans does.
fn text(word: &Value) -> Value {
    word.as_str().map_or_else(|| word.to_string(), str::to_owned).into()
}
