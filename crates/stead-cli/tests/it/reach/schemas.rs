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
