//! Operations through a session: the same results as here.

use std::fs;

use serde_json::{Value, json};
use stead_model::plan::SecretRef;
use stead_model::{Report, Status};
use stead_runner::ReportValues as _;

use super::direct::{Place, op};

#[tokio::test]
async fn a_file_is_made_on_the_target_and_the_session_leaves_nothing() {
    let place = Place::new();
    let path = place.target("motd");
    let present = || op("file.present", json!({"path": path, "content": "hello\n", "mode": "0640"}));
    for wanted in [Status::Changed, Status::Unchanged] {
        let report = place
            .run(|plan| {
                plan.op("motd", present()).on("web1");
            })
            .await;
        assert_eq!(report.tasks[0].status, wanted, "{report:#?}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "hello\n");
    assert_eq!(place.sessions_left(), 0);
}

/// Returns the rows of a report without what differs from run to run.
fn rows(report: &Report) -> Vec<Value> {
    let without = |mut row: Value| {
        for key in ["duration_ms", "started_at", "hosts"] {
            row.as_object_mut().unwrap().remove(key);
        }
        // Where a program was looked for is the machine's own affair.
        if row["name"] == "missing" && row["status"] == "failed" {
            assert!(row["error"].as_str().unwrap().starts_with("exit code 127: "), "{row}");
            (row["error"], row["data"]["stderr"]) = (Value::Null, Value::Null);
        }
        row
    };
    report.tasks.iter().map(|task| without(serde_json::to_value(task).unwrap())).collect()
}

/// The same plan here and there: every kind of operation, run, predicted and run again.
#[tokio::test]
async fn results_are_the_same_there_as_here() {
    let place = Place::new();
    fs::create_dir_all(place.path("tree/deep")).unwrap();
    fs::write(place.path("tree/a.txt"), "a\n").unwrap();
    fs::write(place.path("tree/deep/b.bin"), [0xff, 0, 1]).unwrap();
    fs::write(place.path("tree/skip.log"), "no").unwrap();
    std::os::unix::fs::symlink("a.txt", place.path("tree/link")).unwrap();
    fs::write(place.path("t.j2"), "{{ vars.greeting }} from {{ host.labels.role }}\n{{ vars.own }}\n")
        .unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(place.path("large"), &large).unwrap();
    fs::write(place.path("fetched"), "from the target").unwrap();

    let mut seen: Vec<Vec<Vec<Value>>> = Vec::new();
    for host in ["local", "web1"] {
        let root = place.path("target").join("same");
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        fs::create_dir(&root).unwrap();
        fs::write(root.join("old"), "one\ntwo\n").unwrap();
        let at = |name: &str| root.join(name).display().to_string();
        let plan = || {
            place.plan(|plan| {
                plan.var("greeting", "hello");
                let source = plan
                    .op("source", op("file.present", json!({"path": at("source"), "source": "t.j2"})))
                    .on(host)
                    .handle();
                plan.op("large", op("file.present", json!({"path": at("large"), "source": "large"}))).on(host);
                plan.op(
                    "template",
                    op("file.template", json!({"path": at("t"), "source": "t.j2", "vars": {"own": 7}})),
                )
                .on(host);
                plan.op(
                    "copy",
                    op("file.copy", json!({"path": at("tree"), "source": "tree", "exclude": ["*.log"]})),
                )
                .on(host);
                plan.op("line", op("file.line", json!({"path": at("old"), "line": "three"}))).on(host);
                let fetched = place.path("fetched").display().to_string();
                plan.op("fetch", op("file.fetch", json!({"path": fetched, "to": "kept"}))).on(host);
                let script = "echo out; echo err >&2; exit 3";
                plan.op("shell", op("command.shell", json!({"script": script, "ok_exit": [3]}))).on(host);
                let exec = json!({"command": "cat", "stdin": "in\n", "env": {"A": "b"}, "cwd": "/"});
                plan.op("exec", op("command.exec", exec)).on(host);
                plan.op("made", op("command.exec", json!({"command": "true", "creates": at("old")}))).on(host);
                plan.op("never", op("command.exec", json!({"command": "false", "unless": "true"}))).on(host);
                plan.op("missing", op("command.exec", json!({"command": "no-such-program"})))
                    .on(host)
                    .on_error(stead_runner::author::OnError::Continue);
                let that = json!({"that": ["vars.greeting == 'hello'", "results.source.status in ['changed', 'unchanged']"]});
                plan.op("assert", op("assert", that)).on(host).after(source);
                plan.op("wrong", op("assert", json!({"that": "1 == 2", "message": "no"})))
                    .on(host)
                    .on_error(stead_runner::author::OnError::Continue);
                plan.op("absent", op("file.present", json!({"path": at("x"), "source": "not-there"})))
                    .on(host)
                    .on_error(stead_runner::author::OnError::Continue);
            })
        };
        let mut labelled = place.host();
        labelled.labels.insert("role".to_owned(), "web".to_owned());
        let mut local = stead_model::inventory::Host::local();
        local.labels.insert("role".to_owned(), "web".to_owned());
        let hosts = [("web1", labelled), ("local", local)];
        let before = place.runner_for(&hosts).dry_run(plan()).await;
        assert!(!root.join("t").exists(), "a dry run writes nothing");
        let first = place.runner_for(&hosts).run(plan()).await;
        let again = place.runner_for(&hosts).run(plan()).await;
        assert_eq!(fs::read_to_string(root.join("t")).unwrap(), "hello from web\n7\n");
        assert_eq!(fs::read(root.join("large")).unwrap(), large);
        assert_eq!(fs::read(root.join("tree/deep/b.bin")).unwrap(), [0xff, 0, 1]);
        assert_eq!(fs::read_link(root.join("tree/link")).unwrap().to_str(), Some("a.txt"));
        assert!(!root.join("tree/skip.log").exists());
        assert_eq!(fs::read_to_string(place.path("kept")).unwrap(), "from the target");
        seen.push(vec![rows(&before), rows(&first), rows(&again)]);
    }
    let there = seen.pop().unwrap();
    for (number, (here, there)) in seen.pop().unwrap().into_iter().zip(there).enumerate() {
        for (here, there) in here.into_iter().zip(there) {
            let text = |row: Value| row.to_string().replace("on web1", "on local").replace("web1", "local");
            assert_eq!(text(here), text(there), "run {number}");
        }
    }
    assert_eq!(place.sessions_left(), 0);
}

#[tokio::test]
async fn a_change_there_is_undone_there() {
    let place = Place::new();
    fs::write(place.target("f"), "before\n").unwrap();
    let path = place.target("f");
    let report = place
        .run(|plan| {
            plan.on_failure(stead_model::plan::OnFailure::Rollback);
            let write = op("file.present", json!({"path": path, "content": "after\n", "mode": "0600"}));
            let first = plan.op("write", write).on("web1").undo_auto().handle();
            plan.op("fail", op("command.exec", json!({"command": "false"}))).on("web1").after(first);
        })
        .await;
    assert_eq!(report.rollback.as_ref().unwrap().done.len(), 1, "{report:#?}");
    assert_eq!(fs::read_to_string(place.target("f")).unwrap(), "before\n");
}

#[tokio::test]
async fn a_dry_run_sees_its_own_predictions_there() {
    let place = Place::new();
    let (path, line) = (place.target("new"), place.target("new"));
    let plan = place.plan(|plan| {
        let first = op("file.present", json!({"path": path, "content": "a\n"}));
        let first = plan.op("first", first).on("web1").handle();
        plan.op("second", op("file.line", json!({"path": line, "line": "a"}))).on("web1").after(first);
    });
    let report = place.runner().dry_run(plan).await;
    let statuses: Vec<Status> = report.tasks.iter().map(|task| task.status).collect();
    assert_eq!(statuses, [Status::Changed, Status::Unchanged], "{report:#?}");
    assert!(!place.path("target/new").exists() && place.sessions_left() == 0);
}

/// Secrets go to the operations that use them, and come back masked.
#[tokio::test]
async fn secrets_are_masked_and_sent_only_where_they_are_used() {
    let place = Place::new();
    let path = place.target("s");
    let report = place
        .run(|plan| {
            plan.secret("token", SecretRef::Env("TOKEN".to_owned()));
            let content = json!({"path": path, "content": "key={{ secrets.token }}\n"});
            plan.op("file", op("file.present", content)).on("web1");
            let script =
                json!({"script": "T=$(cat); echo value: $T; echo $T >&2", "stdin": "{{ secrets.token }}"});
            plan.op("shell", op("command.shell", script)).on("web1");
        })
        .await;
    assert_eq!(report.exit_code, stead_model::ExitCode::Success, "{report:#?}");
    assert_eq!(fs::read_to_string(place.target("s")).unwrap(), "key=s3cret-value\n");
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains("value: ***") && !text.contains("s3cret-value"), "{text}");
    for entry in walkdir(&place.path("state")) {
        let bytes = fs::read(&entry).unwrap();
        assert!(!bytes.windows(12).any(|part| part == b"s3cret-value"), "{}", entry.display());
    }
}

fn walkdir(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).unwrap().flatten() {
            if entry.path().is_dir() { open.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

/// Two hosts of one run on one machine: one session process, two sessions, each with its own predictions and names.
#[tokio::test]
async fn two_hosts_of_a_run_may_be_one_machine() {
    let place = Place::new();
    let plan = place.plan(|plan| {
        let script = json!({"script": "echo $STEAD_HOST; sleep 0.2"});
        plan.op("who", op("command.shell", script)).on("_all");
    });
    let hosts = [("web1", place.host()), ("web2", place.host())];
    let report = place.runner_for(&hosts).run(plan).await;
    let said: Vec<&str> = report.tasks[0]
        .hosts
        .iter()
        .map(|row| row.data.as_ref().unwrap()["stdout"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["web1\n", "web2\n"], "{report:#?}");
    assert_eq!(place.sessions_left(), 0);
}

/// Output far beyond what is kept in memory arrives whole and in order.
#[tokio::test]
async fn long_output_arrives_whole() {
    let place = Place::new();
    let report = place
        .run(|plan| {
            plan.op("long", op("command.shell", json!({"script": "seq 1 600000"}))).on("web1");
        })
        .await;
    assert_eq!(report.exit_code, stead_model::ExitCode::Success, "{report:#?}");
    let bundle = std::path::PathBuf::from(report.bundle.clone().unwrap());
    let log = fs::read_to_string(bundle.join("logs/long/web1.1.stdout")).unwrap();
    let wanted: String = (1..=600_000).map(|number| format!("{number}\n")).collect();
    assert!(log == wanted, "{} bytes of {}", log.len(), wanted.len());
}

#[tokio::test]
async fn an_operation_from_a_closure_runs_there() {
    let place = Place::new();
    let mut builder = stead_runner::author::Plan::builder("p");
    builder.operations(&stead_drivers::Drivers::standard());
    let said = builder
        .func("ask", |cx: stead_runner::TaskContext| async move {
            let out = cx.op(op("command.shell", json!({"script": "echo $HOME"})), "web1").await?;
            Ok(stead_runner::Done::unchanged(out.stdout().trim().to_owned()))
        })
        .handle();
    let report = place.runner().run(builder.build().unwrap()).await;
    let home: String = report.value(said).unwrap();
    assert_eq!(home, place.path("home").display().to_string(), "{report:#?}");
}
