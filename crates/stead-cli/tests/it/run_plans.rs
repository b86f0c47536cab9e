//! Planning runs of roles, through the built binary: nothing is started, connected to or written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cases_17_32::lab::Ended;
use crate::process::stead;

/// The short form.
const SHORT: &str = "\
api_version: v1
run_id: auto
profile:
  path: profiles/pump.yaml
  distribution: push
network:
  data_plane:
    target_ip: 10.20.0.7
    server_listen_ip: 0.0.0.0
    target_port: 45000
roles:
  server: {agent: A1, personality: adapter}
  client:
    agent: local
    scenario: baseline
    duration_seconds: 20
readiness: {method: tcp_connect}
post_run: {analyze: true}
";

/// A directory with a manifest in it.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new(manifest: &str) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        desk.write("run.yaml", manifest);
        desk.write("profiles/pump.yaml", "pump: 1\n");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.run_in(self.dir.path(), "run.yaml", args)
    }

    fn run_in(&self, dir: &Path, file: &str, args: &[&str]) -> Ended {
        let mut command = stead(dir);
        command.args(["run", "manifest", file]).args(args).output().unwrap().into()
    }

    /// Plans, and returns the diagnostics.
    #[track_caller]
    fn diagnostics(&self, args: &[&str], code: i32) -> Vec<Value> {
        let args: Vec<&str> = ["--dry-run", "--json"].iter().chain(args).copied().collect();
        let document = self.run(&args).exits(code).document();
        assert_eq!(document["exit_code"], code);
        document["diagnostics"].as_array().unwrap().clone()
    }

    /// Plans, and returns the plan.
    #[track_caller]
    fn plan(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = ["--print-plan", "--json"].iter().chain(args).copied().collect();
        self.run(&args).exits(0).document()
    }

    /// Returns every file there is, by its path.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![self.dir.path().to_owned()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    found.push(path.strip_prefix(self.dir.path()).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }
}

fn paths(diagnostics: &[Value]) -> Vec<&str> {
    diagnostics.iter().map(|problem| problem["path"].as_str().unwrap()).collect()
}

fn argv<'p>(plan: &'p Value, role: &str) -> Vec<&'p str> {
    plan["roles"][role]["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// Case 1: an empty file lacks `api_version` and `roles`, said at once; no directory is made.
#[test]
fn an_empty_manifest_lacks_two_keys() {
    let desk = Desk::new("");
    for args in [&["--dry-run"][..], &[]] {
        let ended = desk.run(args).exits(3);
        assert!(
            ended.stderr.contains("`api_version`") && ended.stderr.contains("`roles`"),
            "{}",
            ended.stderr
        );
    }
    desk.write("run.yaml", "api_version: v2\nroles: {a: {command: [x]}}\n");
    desk.run(&[]).exits(3).says("api_version: expected `v1`, found the text `v2`");
    assert_eq!(desk.files(), ["profiles/pump.yaml", "run.yaml"]);
    assert!(!desk.path("runs").exists());
    desk.run_in(desk.dir.path(), "nope.yaml", &[]).exits(3).says("cannot read the file");
}

/// Case 2: all faults of manifest, kit and registry in one output, with lines and paths.
#[test]
fn all_faults_are_in_one_output() {
    let desk = Desk::new(
        "api_version: v1\nrun_id: a/b\nreadines: {method: none}\nlease_seconds: 1\nagents: {x: 'ftp://h'}\nroles:\n  \
         a: {command: [], needs: [b2]}\n  b: {command: ['{{ vars.x }}'], timeout_seconds: -3}\n  c: {kit: mine, kit_role: c, agent: nobody}\n",
    );
    desk.write(
        "kits/mine.yaml",
        "api_version: v1\nkit: mine\nroles: {c: {command: [x], fields: {f: {type: text}}}}\n",
    );
    let found = desk.diagnostics(&[], 3);
    assert_eq!(
        paths(&found),
        [
            "roles.c.fields.f.type",
            "run_id",
            "readines",
            "lease_seconds",
            "agents.x",
            "roles.a.command",
            "roles.a.needs[0]",
            "roles.b.command[0]",
            "roles.b.timeout_seconds",
        ]
    );
    let lines: Vec<u64> = found.iter().map(|problem| problem["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [3, 2, 3, 4, 5, 7, 7, 8, 8]);
    assert!(found[2]["help"].as_str().unwrap().contains("`readiness`"));
    let text = desk.run(&["--dry-run"]).exits(3).stderr;
    for path in paths(&found) {
        assert!(text.contains(&format!("{path}: ")), "no {path} in {text}");
    }
    assert!(text.ends_with("9 problems in 2 files\n"), "{text}");
}

/// Case 4: the command lines of the short form, exactly; case 7: as text.
#[test]
fn the_short_form_gives_exact_command_lines() {
    let desk = Desk::new(&SHORT.replace(
        "duration_seconds: 20",
        "duration_seconds: 20\n    args: {log_level: debug, rate: 2.9, tag: [a, b]}",
    ));
    let plan = desk.plan(&["--agent", "A1=local"]);
    assert_eq!(
        argv(&plan, "server").join(" "),
        "cipdip server --listen-ip 0.0.0.0 --listen-port 45000 --personality adapter --tui-stats"
    );
    assert_eq!(
        argv(&plan, "client").join(" "),
        "cipdip client --ip 10.20.0.7 --port 45000 --scenario baseline --duration-seconds 20 --tui-stats --log-level debug \
         --rate 2.9 --tag a --tag b"
    );
    let dry = desk.run(&["--dry-run", "--agent", "A1=u@10.0.0.1"]).exits(0);
    insta::assert_snapshot!("dry_run_of_the_short_form", dry.stdout);
    let whole = desk.run(&["--print-plan", "--agent", "A1=u@10.0.0.1"]).exits(0);
    let hash = regex::Regex::new("[0-9a-f]{64}").unwrap();
    insta::assert_snapshot!("print_plan_of_the_short_form", hash.replace_all(&whole.stdout, "HASH"));
}

/// Case 5: a run id that is a path is refused, and nothing is written.
#[test]
fn run_ids_never_leave_the_directory() {
    let desk = Desk::new("");
    for id in ["../../x", "a/b", "-x"] {
        desk.write(
            "run.yaml",
            &format!("api_version: v1\nrun_id: {id}\nroles: {{a: {{command: ['true']}}}}\n"),
        );
        desk.run(&[]).exits(3).says("run_id: ");
    }
    assert_eq!(desk.files(), ["profiles/pump.yaml", "run.yaml"]);
}

/// Case 6: profiles are found beside the manifest from anywhere; a wrong one is refused with both hashes, always.
#[test]
fn profiles_are_checked_before_anything_happens() {
    let desk = Desk::new(SHORT);
    let elsewhere = tempfile::tempdir().unwrap();
    let file = desk.path("run.yaml").display().to_string();
    desk.run_in(elsewhere.path(), &file, &["--dry-run", "--agent", "A1=local"]).exits(0);
    let wrong = "0".repeat(64);
    desk.write("run.yaml", &SHORT.replace("distribution: push", &format!("checksum: sha256:{wrong}")));
    let right = "f19a4b8cc7fb2d6cda551d550b6511759a2c76addf6409a9289a560effc731a6";
    for args in [&["--dry-run"][..], &["--print-plan"], &[]] {
        let args: Vec<&str> = args.iter().chain(&["--agent", "A1=local"]).copied().collect();
        let ended = desk.run(&args).exits(3).says(&wrong);
        assert!(ended.stderr.contains(right), "both hashes: {}", ended.stderr);
    }
    fs::remove_file(desk.path("profiles/pump.yaml")).unwrap();
    desk.run(&["--dry-run", "--agent", "A1=local"])
        .exits(3)
        .says("cannot read the profile `profiles/pump.yaml`");
    assert!(!desk.path("runs").exists());
}

/// Case 7: plans open no connection, write nothing and are the same bytes every time.
#[test]
fn plans_touch_nothing_and_are_the_same_every_time() {
    let desk = Desk::new(SHORT);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let agent = format!("A1=ssh://u:pw@127.0.0.1:{}?insecure=true", listener.local_addr().unwrap().port());
    let first = desk.run(&["--print-plan", "--json", "--agent", &agent]).exits(0);
    assert!(!first.stdout.contains("pw@") && !first.stderr.contains("pw@"), "{}", first.stdout);
    for _ in 0..19 {
        assert_eq!(desk.run(&["--print-plan", "--json", "--agent", &agent]).exits(0).stdout, first.stdout);
    }
    assert_eq!(desk.run(&["--dry-run", "--json", "--agent", &agent]).exits(0).stdout, first.stdout);
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(desk.files(), ["profiles/pump.yaml", "run.yaml"]);
    let plan = first.document();
    assert_eq!((plan["run_id"].as_str(), plan["timeout_seconds"].as_u64()), (Some("auto"), Some(300)));
    assert!(first.stdout.starts_with("{\"agents\":"), "canonical: {}", first.stdout);
}

/// Case 3: what a short form cannot do without, and values it cannot have, all at once; enums list their values.
#[test]
fn short_forms_are_refused_with_every_problem() {
    let without_listen_ip = SHORT.replace("    server_listen_ip: 0.0.0.0\n", "").replace("A1", "local");
    let desk = Desk::new(&without_listen_ip);
    assert_eq!(paths(&desk.diagnostics(&[], 3)), ["network.data_plane.server_listen_ip"]);
    let client_only = without_listen_ip.replace("  server: {agent: local, personality: adapter}\n", "");
    desk.write("run.yaml", &client_only);
    desk.run(&["--dry-run"]).exits(0);
    for (from, to, path, listed) in [
        ("duration_seconds: 20", "duration_seconds: 0", "roles.client.duration_seconds", ""),
        ("scenario: baseline", "scenario: profile", "roles.client.profile_role", ""),
        ("target_port: 45000", "target_port: 99999", "network.data_plane.target_port", "65535"),
        ("distribution: push", "distribution: pull", "profile.distribution", "preinstalled"),
        ("method: tcp_connect", "method: tcp", "readiness.method", "structured_stdout"),
        (
            "api_version: v1",
            "api_version: v1\nartifacts: {bundle_format: rar}",
            "artifacts.bundle_format",
            "tar.zst",
        ),
    ] {
        desk.write("run.yaml", &client_only.replace(from, to));
        let found = desk.diagnostics(&[], 3);
        assert_eq!(paths(&found), [path], "{found:?}");
        assert!(found[0].to_string().contains(listed), "{found:?}");
        desk.run(&[]).exits(3).says(path);
    }
    assert!(!desk.path("runs").exists());
}

/// Case 8: who is an agent, and what is said to a word that is none.
#[test]
fn agents_come_from_flags_manifest_and_registry() {
    let desk = Desk::new(SHORT);
    let found = desk.diagnostics(&[], 3);
    assert_eq!(paths(&found), ["roles.server.agent"]);
    assert!(found[0]["help"].as_str().unwrap().contains("known agents: local"), "{found:?}");
    desk.write("agents.yaml", "agents:\n  A1: {transport: local, name: A1, last_check: x, status: ok, status_msg: '', os_arch: linux/amd64, cipdip_version: 1, pcap_capable: true}\n  B2: u@h\n");
    let plan = desk.plan(&[]);
    assert_eq!(plan["roles"]["server"]["agent_id"], "A1");
    assert_eq!(plan["agents"]["A1"]["transport"], "local");
    desk.write("other.yaml", "agents: {A1: u@other}\n");
    let plan = desk.plan(&["--agents", "other.yaml"]);
    assert_eq!(plan["roles"]["server"]["transport"], "ssh://u@other");
    let plan = desk.plan(&["--agent", "server=B2"]);
    assert_eq!(plan["roles"]["server"]["agent_id"], "B2");
}

/// Flags that mean nothing are usage errors with candidates; a password in one is not repeated.
#[test]
fn bad_flags_exit_2_with_candidates() {
    let desk = Desk::new(SHORT);
    desk.run(&["--agent", "A2=local"]).exits(2).says("known: A1, client, local, server");
    desk.run(&["--agent", "A1=local", "--agent", "A1=local"]).exits(2).says("`A1` is given twice");
    desk.run(&["--agent", "A1=word"]).exits(2).says("known agents: local");
    for bad in ["A1", "ssh://u:hunter2@h", "ssh://u:hunter2@h?key=x", "A1=ssh://u:hunter2@"] {
        let ended = desk.run(&["--agent", bad]).exits(2);
        assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
    }
    desk.run(&["--timeout", "5"]).exits(2).says("5s");
    desk.run(&["--var", "x=1"]).exits(2).says("`x`");
    desk.run(&["--json", "--events", "-"]).exits(2);
    assert!(!desk.path("runs").exists());
}

/// Case 9: a kit's file beside the manifest or in `--kits`.
#[test]
fn kits_are_found_beside_the_manifest_and_where_a_flag_says() {
    let kit = "api_version: v1\nkit: stub\nroles:\n  echo: {fields: {word: {type: string, required: true}}, command: [echo, '{{ word }}', '{{ args }}']}\n";
    let desk = Desk::new("api_version: v1\nkit: stub\nroles: {echo: {word: hi, args: {n: 1}}}\n");
    desk.run(&["--dry-run"]).exits(3).says("there is no kit `stub`");
    desk.write("more/stub.yaml", kit);
    assert_eq!(argv(&desk.plan(&["--kits", "more"]), "echo"), ["echo", "hi", "--n", "1"]);
    desk.write("kits/stub.yaml", kit);
    let plan = desk.plan(&[]);
    assert_eq!(argv(&plan, "echo"), ["echo", "hi", "--n", "1"]);
    assert_eq!(plan["kits"]["stub"].as_str().unwrap().len(), 64);
    desk.run(&["--dry-run", "--kits", "more"]).exits(3).says("there are two files of kit `stub`");
    desk.write("run.yaml", "api_version: v1\nkit: stub\nroles: {echo: {wrd: hi}}\n");
    assert_eq!(paths(&desk.diagnostics(&[], 3)), ["roles.echo.word", "roles.echo.wrd"]);
    desk.write("kits/cipdip.yaml", kit);
    desk.run(&["--dry-run"]).exits(3).says("`cipdip` is the built-in kit");
}

/// Case 32: a baseline that is missing is refused before any role starts, unless nobody wants to compare.
#[test]
fn a_missing_baseline_is_refused_unless_nothing_is_compared() {
    let desk = Desk::new(
        "api_version: v1\nroles: {a: {command: ['true']}}\npost_run: {diff_baseline: base, fail_on: ['services_added>0']}\n",
    );
    for args in [&["--dry-run"][..], &[]] {
        desk.run(args).exits(3).says("post_run.diff_baseline: ");
    }
    assert!(!desk.path("runs").exists());
    desk.run(&["--dry-run", "--no-diff"]).exits(0).says("skipped: not asked for");
    desk.write("run.yaml", "api_version: v1\nroles: {a: {command: ['true']}}\npost_run: {diff_baseline: base, fail_on: [nope]}\n");
    assert_eq!(paths(&desk.diagnostics(&[], 3)), ["post_run.diff_baseline", "post_run.fail_on[0]"]);
}

#[test]
fn files_are_hashed_and_keep_their_mode() {
    let desk = Desk::new("api_version: v1\nroles: {a: {command: [./store], files: [bin/store, gone]}}\n");
    desk.write("bin/store", "#!/bin/sh\n");
    fs::set_permissions(desk.path("bin/store"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(paths(&desk.diagnostics(&[], 3)), ["roles.a.files[1]"]);
    desk.write("gone", "");
    let plan = desk.plan(&[]);
    let file = &plan["roles"]["a"]["files"][0];
    assert_eq!((file["to"].as_str(), file["mode"].as_u64()), (Some("store"), Some(0o751)));
    assert_eq!(file["sha256"], "a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf");
}
