//! Runs that go well, and their bundles.

use std::fs;

use serde_json::{Value, json};

use super::place::{Place, SERVER};

fn pair(client: &str) -> Place {
    Place::new(&format!("  server: {SERVER}\n  client: {{needs: [server], command: [sh, -c, '{client}']}}\n"))
}

/// Case 11: phases in order, what was not asked for is skipped, the bundle is whole.
#[test]
fn a_service_and_a_task_run_and_leave_one_whole_bundle() {
    let place = pair("echo hello; echo oops >&2");
    let document = place.json(&[], 0);
    assert_eq!(document["status"], "success");
    assert_eq!(document["bundle"], "runs/r");
    assert_eq!(document["roles"]["client"], json!({"status": "success", "exit_code": 0, "signal": null}));
    assert_eq!(
        place.phases(),
        [
            "init:done",
            "stage:done",
            "server_start:done",
            "server_ready:done",
            "client_start:done",
            "client_done:done",
            "server_stop:done",
            "collect:done",
            "bundle:done",
            "analyze:skipped",
            "diff:skipped",
        ]
    );
    let meta = place.meta();
    assert_eq!(
        (&meta["kind"], &meta["ended_by"], &meta["seed"]),
        (&json!("run"), &json!("tasks"), &json!(0))
    );
    assert_eq!(meta["phases"][3]["role"], "server");
    assert_eq!(meta["phases_completed"].as_array().unwrap().len(), 9);
    assert_eq!(place.read("roles/client/stdout.log"), "hello\n");
    assert_eq!(place.read("roles/client/stderr.log"), "oops\n");
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    assert_eq!(place.read("manifest.yaml"), place.lab.read("m.yaml"));
    let server = place.role("server");
    assert_eq!(server["ready"]["by"], "structured_stdout");
    assert_eq!(server["ready"]["values"]["listen"], "here:1");
    assert_eq!(server["stop"], json!({"signal": "TERM", "reason": "done", "killed": false}));
    assert_eq!(server["artifacts"][0]["path"], "marker");
    let versions: Value = serde_json::from_str(&place.read("versions.json")).unwrap();
    assert_eq!(versions["roles"]["client"]["program"].as_str().map(|path| path.ends_with("/sh")), Some(true));
    assert_eq!(versions["roles"]["client"]["stead_sha256"].as_str().map(str::len), Some(64));
    let resolved = place.read("manifest_resolved.yaml");
    assert!(resolved.contains("run_id: r\n") && resolved.contains("manifest_sha256: "), "{resolved}");
    place.is_clean();
}

/// Section 4.5: one line per phase, once; then status and bundle; `-v` adds output of roles.
#[test]
fn a_run_is_told_in_one_line_per_phase() {
    let place = pair("echo hello");
    let ended = place.run(&["-v"]).exits(0);
    for phase in
        ["init", "stage", "server_start", "server_ready", "client_done", "server_stop", "collect", "bundle"]
    {
        let lines = ended.stderr.lines().filter(|line| line.starts_with(&format!("[done] {phase} "))).count();
        assert_eq!(lines, 1, "{phase}: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("client | hello\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("[skipped] analyze: "), "{}", ended.stderr);
    assert_eq!(ended.stdout, "Status: success\nBundle: runs/r\n");
    place.is_clean();
}

/// Cases 5 and section 4.4: an id that is taken is refused, moved away, or held.
#[test]
fn a_run_id_that_is_taken_is_refused_or_moved_away() {
    let place = pair("true");
    place.run(&[]).exits(0);
    let before = place.lab.snapshot("runs");
    place.run(&[]).exits(3).says("exists already");
    assert_eq!(place.lab.snapshot("runs"), before);
    place.run(&["--force"]).exits(0);
    assert!(place.lab.path("runs/r.old-1/hashes.txt").exists());
    let slow = pair("sleep 170");
    let running = slow.start(&[]);
    slow.wait_for_event("role_started", "client");
    slow.run(&[]).exits(5).says("in progress");
    slow.run(&["--force"]).exits(5).says("in progress");
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.end().code, 130);
    slow.is_clean();
}

/// Section 2.1: ids that nobody chose are made unique.
#[test]
fn runs_without_a_name_count_on() {
    let place = Place::of("api_version: v1\nroles:\n  one: {command: ['true']}\n");
    let running: Vec<_> = (0..3).map(|_| place.start(&["--json"])).collect();
    for running in running {
        running.end().exits(0);
    }
    let names: Vec<String> = fs::read_dir(place.lab.path("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|name| name.len() >= 19 && name.as_bytes()[10] == b'_'), "{names:?}");
}

/// Case 4: the short form with a scripted `cipdip`.
#[test]
fn the_short_form_gives_the_command_lines_of_the_kit() {
    let place = Place::of(
        "api_version: v1
run_id: r
profile: {path: profiles/pump.yaml, distribution: push}
network: {data_plane: {target_ip: 127.0.0.1, server_listen_ip: 0.0.0.0, target_port: 45000}}
roles:
  server: {agent: A1, personality: adapter}
  client:
    agent: local
    scenario: baseline
    duration_seconds: 2
    args: {log_level: debug, rate: 2.9, tag: [a, b]}
readiness: {method: structured_stdout}
",
    );
    place.lab.write("profiles/pump.yaml", "pump: 1\n");
    place.program(
        "bin/cipdip",
        r#"#!/bin/sh
python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' cipdip "$@"
[ "$1" = server ] || exit 0
echo '{"event":"server_ready","listen":"0.0.0.0:45000"}'
trap 'exit 0' TERM
while :; do sleep 0.02; done
"#,
    );
    place.json(&["--agent", "A1=local"], 0);
    let argv = |role: &str| -> Vec<String> {
        let log = place.read(&format!("roles/{role}/stdout.log"));
        serde_json::from_str(log.lines().next().unwrap()).unwrap()
    };
    assert_eq!(
        argv("server"),
        [
            "cipdip",
            "server",
            "--listen-ip",
            "0.0.0.0",
            "--listen-port",
            "45000",
            "--personality",
            "adapter",
            "--tui-stats"
        ]
    );
    assert_eq!(
        argv("client"),
        [
            "cipdip",
            "client",
            "--ip",
            "127.0.0.1",
            "--port",
            "45000",
            "--scenario",
            "baseline",
            "--duration-seconds",
            "2",
            "--tui-stats",
            "--log-level",
            "debug",
            "--rate",
            "2.9",
            "--tag",
            "a",
            "--tag",
            "b",
        ]
    );
    assert_eq!(place.read("profile.yaml"), "pump: 1\n");
    place.is_clean();
}

/// Case 19: no limit of lines.
#[test]
fn ten_megabytes_without_a_newline_are_logged_whole() {
    let place = Place::new("  one: {command: [sh, -c, 'head -c 10000000 /dev/zero | tr \"\\0\" x']}\n");
    place.json(&[], 0);
    assert_eq!(fs::metadata(place.bundle().join("roles/one/stdout.log")).unwrap().len(), 10_000_000);
    let logged: u64 = place
        .events()
        .iter()
        .filter(|event| event["ev"] == "log")
        .map(|event| event["len"].as_u64().unwrap())
        .sum();
    assert_eq!(logged, 10_000_000);
    assert_eq!(place.role("one")["stdout_bytes"], 10_000_000);
    place.is_clean();
}

/// Section 4.3: secrets reach the environment and nothing else.
#[test]
fn a_secret_is_in_the_environment_and_nowhere_in_the_bundle() {
    let place = Place::of(
        "api_version: v1
run_id: r
secrets: {token: {env: THE_TOKEN}}
roles:
  one: {command: [sh, -c, 'test ${#KEY} = 9 || exit 9; test -z \"$THE_TOKEN\" || exit 8; echo \"key $KEY\"'], env: {KEY: '{{ secrets.token }}'}}
",
    );
    let ended = place.stead(["run", "manifest", "m.yaml"]).env("THE_TOKEN", "hush-hush").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(place.read("roles/one/stdout.log"), "key ***\n");
    let found =
        std::process::Command::new("grep").args(["-r", "hush-hush"]).arg(place.bundle()).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    place.is_clean();
}

/// Cases 27 and 28, as runs make them: signed, and an archive instead of a directory.
#[test]
fn a_run_can_leave_a_signed_archive() {
    let place = Place::of(
        "api_version: v1\nrun_id: r\nartifacts: {bundle_format: zip}\nroles:\n  one: {command: ['true']}\n",
    );
    let key = place.lab.path("key");
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "a@b", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    place.run(&["--sign", "no-such-key"]).exits(3);
    assert!(!place.lab.path("runs").exists());
    let document = place.json(&["--sign", "key"], 0);
    assert_eq!(document["bundle"], "runs/r.zip");
    assert!(!place.bundle().exists());
    let checked =
        place.stead(["bundle", "verify", "runs/r.zip", "--require-signature", "--json"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// Case 5, for archives: an id that an archive has is taken, and `--force` keeps the old one.
#[test]
fn an_archive_has_its_run_id() {
    let place = Place::of(
        "api_version: v1\nrun_id: r\nartifacts: {bundle_format: zip}\nroles:\n  one: {command: [sh, -c, 'echo x >> @']}\n",
    );
    let ran = place.lab.path("ran");
    let manifest = place.lab.read("m.yaml").replace('@', &ran.display().to_string());
    place.lab.write("m.yaml", manifest);
    place.json(&[], 0);
    let first = std::fs::read(place.lab.path("runs/r.zip")).unwrap();
    place.run(&[]).exits(3).says("exists already");
    assert_eq!(place.lab.read("ran"), "x\n", "nothing was started");
    place.json(&["--force"], 0);
    assert_eq!(std::fs::read(place.lab.path("runs/r.old-1.zip")).unwrap(), first);
    assert!(place.lab.path("runs/r.zip").exists() && !place.bundle().exists());
}

/// Section 5: what a bundle's files may be used for does not hang on the process's mask.
#[test]
fn permissions_of_a_bundle_are_the_same_under_every_mask() {
    for mask in ["000", "077"] {
        let place = Place::new(
            "  one: {command: [sh, -c, 'mkdir out; echo 1 > out/x.json'], artifacts: ['out/*.json']}\n",
        );
        let stead = place.stead([]).get_program().to_owned();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("umask {mask}; exec \"$@\""), "sh"]).arg(&stead);
        command.args(["run", "manifest", "m.yaml"]).current_dir(place.lab.root());
        for (name, value) in place.stead([]).get_envs() {
            command.env(name, value.unwrap());
        }
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let mut find = std::process::Command::new("find");
        let found = find.arg(place.bundle()).args(["-printf", "%m %y %f\\n"]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        assert!(found.lines().any(|line| line.ends_with("x.json")), "{found}");
        for line in found.lines() {
            let [mode, kind, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let expected = match (kind, name) {
                ("d", _) => "755",
                (_, "lock") => continue,
                (_, name) if name.ends_with(".log") => "600",
                (_, _) => "644",
            };
            assert_eq!(mode, expected, "{name} under {mask}");
        }
        place.is_clean();
    }
}
