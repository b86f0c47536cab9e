//! Manifests in, plans out.

use std::path::Path;

use serde_json::{Value, json};
use stead_model::diagnostic::Source;
use stead_model::run_plan::{Analyze, Arg, RolePlan, Until};

use super::*;
use crate::compile::VarFlag;

mod kits;
mod orders;
mod templates;

/// What a run is planned from, for tests.
#[derive(Default)]
struct Wish<'a> {
    manifest: &'a str,
    kits: &'a [(&'a str, &'a str)],
    registry: &'a str,
    agents: &'a [&'a str],
    vars: &'a [&'a str],
    timeout: Option<Duration>,
    no_analyze: bool,
    no_diff: bool,
    /// Files beside the manifest with their contents.
    files: &'a [(&'a str, &'a str)],
}

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

impl Wish<'_> {
    fn of(manifest: &str) -> Wish<'_> {
        Wish { manifest, ..Wish::default() }
    }

    fn compile(&self) -> Result<CompiledRun, Vec<String>> {
        let mut problems = Diagnostics::default();
        let texts = |problems: Diagnostics| -> Vec<String> {
            problems.sorted().iter().map(ToString::to_string).collect()
        };
        let Some(manifest) = RunManifest::read(&source("run.yaml", self.manifest), &mut problems) else {
            return Err(texts(problems));
        };
        let mut kits = BTreeMap::from([("cipdip".to_owned(), Some(Kit::cipdip()))]);
        for (name, text) in self.kits {
            kits.insert((*name).to_owned(), Kit::read(&source(name, text), name, &mut problems));
        }
        let registry = match self.registry {
            "" => Inventory::default(),
            text => Inventory::read(&[source("agents.yaml", text)]).unwrap(),
        };
        let agents: Vec<AgentFlag> = self.agents.iter().map(|flag| AgentFlag::parse(flag).unwrap()).collect();
        let given = Inputs {
            vars: self.vars.iter().map(|flag| VarFlag::parse(flag).unwrap()).collect(),
            ..Inputs::default()
        };
        let inputs = RunInputs {
            manifest: &manifest,
            manifest_sha256: Digest::of(self.manifest.as_bytes()),
            manifest_dir: Path::new("/lab"),
            kits: &kits,
            registry: &registry,
            agents: &agents,
            given: &given,
            timeout: self.timeout,
            analyze: !self.no_analyze,
            diff: !self.no_diff,
        };
        let prepared = prepare(inputs, problems);
        let content = |name: &str| self.files.iter().find(|(file, _)| *file == name).map(|(_, text)| *text);
        let look = |name: &str| match content(name) {
            Some(text) => SeenFile::Read { sha256: Digest::of(text.as_bytes()), mode: 0o755 },
            None => SeenFile::Missing,
        };
        let seen = prepared.wanted_files().into_iter().map(|name| (name.to_owned(), look(name))).collect();
        let profile = manifest.profile.as_ref().map(|profile| match content(&profile.path) {
            Some(text) => Ok(Arc::from(text.as_bytes())),
            None => Err("No such file".to_owned()),
        });
        prepared.compile(&seen, profile).map_err(texts)
    }

    fn run(&self) -> Arc<RunPlan> {
        self.compile().unwrap_or_else(|problems| panic!("{}", problems.join("\n"))).run
    }

    fn problems(&self) -> Vec<String> {
        self.compile().expect_err("it has problems")
    }
}

/// A short-form manifest with these roles.
fn short(roles: &str) -> String {
    format!(
        "api_version: v1\nprofile: {{path: pump.yaml}}\nnetwork: {{data_plane: {{target_ip: 10.20.0.7, \
         server_listen_ip: 0.0.0.0, target_port: 45000}}}}\nroles:\n{roles}"
    )
}

const PUMP: &[(&str, &str)] = &[("pump.yaml", "pump: 1\n")];

/// A manifest with these roles.
fn general(roles: &str) -> String {
    format!("api_version: v1\nroles:\n{roles}")
}

fn argv(role: &RolePlan) -> Vec<&str> {
    role.argv.iter().flat_map(Arg::as_written).collect()
}

fn names(run: &CompiledRun) -> Vec<String> {
    run.compiled.plan.tasks.iter().map(|task| task.name.to_string()).collect()
}

/// Case 6: a profile that is missing or another than was asked for is refused, with both hashes.
#[test]
fn a_profile_must_be_there_and_be_the_one() {
    let roles = "  client: {agent: local, scenario: s, duration_seconds: 1}\n";
    let missing = Wish::of(&short(roles)).problems();
    assert!(missing[0].contains("profile.path: cannot read the profile `pump.yaml`"), "{missing:?}");
    let wanted = Digest::of(b"other");
    let text = short(roles).replace("pump.yaml}", &format!("pump.yaml, checksum: 'sha256:{wanted}'}}"));
    let found = Wish { files: PUMP, ..Wish::of(&text) }.problems();
    assert_eq!(found.len(), 1);
    let actual = Digest::of(PUMP[0].1.as_bytes());
    assert!(found[0].contains(&wanted.to_string()) && found[0].contains(&actual.to_string()), "{found:?}");
    let right = text.replace(&wanted.to_string(), &actual.to_string());
    let run = Wish { files: PUMP, ..Wish::of(&right) }.run();
    assert_eq!(run.profile.as_ref().unwrap().sha256, Some(actual));
    assert_eq!(&**run.profile.as_ref().unwrap().content.as_ref().unwrap(), PUMP[0].1.as_bytes());
}

/// Case 8: who names an agent first is heard; a word nobody knows is no host name.
#[test]
fn agents_are_found_in_order() {
    let manifest = "api_version: v1\nagents: {A1: user@manifest}\nroles:\n  a: {agent: A1, command: [x]}\n";
    let transport = |wish: &Wish<'_>| {
        let run = wish.run();
        (run.roles["a"].agent_id.to_string(), run.roles["a"].transport.clone())
    };
    let wish = |agents: &'static [&'static str]| Wish {
        registry: "agents: {A1: user@registry, B2: {transport: user@second, status: ok, last_check: x}}",
        agents,
        ..Wish::of(manifest)
    };
    let pair = |id: &str, transport: &str| (id.to_owned(), transport.to_owned());
    assert_eq!(
        transport(&wish(&["a=ssh://u@role:2222", "A1=local"])),
        pair("u@role:2222", "ssh://u@role:2222")
    );
    assert_eq!(transport(&wish(&["A1=local"])), pair("A1", "local"));
    assert_eq!(transport(&wish(&["a=B2"])), pair("B2", "ssh://user@second"));
    assert_eq!(transport(&wish(&[])), pair("A1", "ssh://user@manifest"));
    let unnamed = manifest.replace("agents: {A1: user@manifest}\n", "");
    assert_eq!(transport(&Wish { manifest: &unnamed, ..wish(&[]) }), pair("A1", "ssh://user@registry"));
    let literal = unnamed.replace("agent: A1", "agent: 'ssh://u:pw@host?insecure=true'");
    assert_eq!(transport(&Wish::of(&literal)), pair("u@host", "ssh://u:***@host?insecure=true"));
    let found = Wish { registry: "agents: {B2: local}", ..Wish::of(&unnamed) }.problems();
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("roles.a.agent: there is no agent `A1`"), "{found:?}");
    assert!(found[0].contains("known agents: B2, local"), "{found:?}");
}

#[test]
fn agent_flags_must_mean_something() {
    let manifest = general("  a: {agent: A1, command: [x]}\n");
    for (flags, wanted) in [
        (
            &["A2=local", "A1=local"][..],
            "`A2` is neither a role nor an agent of the manifest (help: known: A1, a)",
        ),
        (&["A1=local", "A1=u@h"], "`A1` is given twice"),
        (&["A1=word"], "`word` is no transport"),
        (&["A1=ftp://x"], "`ftp://` is not a transport"),
    ] {
        let found = Wish { agents: flags, ..Wish::of(&manifest) }.problems();
        assert!(found.iter().any(|problem| problem.contains(wanted)), "{flags:?}: {found:?}");
        assert!(found.iter().any(|problem| problem.contains(": --agent ")), "{flags:?}: {found:?}");
    }
    for bad in ["A1", "=local", "A1=", "ssh://u:pw@h?key=x"] {
        assert!(AgentFlag::parse(bad).is_err(), "{bad}");
    }
}

/// Case 7: equal inputs give equal bytes, and the plan has the keys of a run.
#[test]
fn plans_of_runs_are_the_same_bytes_every_time() {
    let manifest = short(
        "  server: {agent: A1}\n  client: {agent: local, scenario: s, duration_seconds: 5, args: {b: 1, a: 2}}\n",
    );
    let wish = Wish { agents: &["A1=ssh://u:hunter2@10.0.0.1"], files: PUMP, ..Wish::of(&manifest) };
    let first = wish.compile().unwrap().compiled.plan.to_json();
    for _ in 0..20 {
        assert_eq!(wish.compile().unwrap().compiled.plan.to_json(), first);
    }
    let text = String::from_utf8(first.clone()).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let plan: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(plan["run_id"], "auto");
    assert_eq!(plan["timeout_seconds"], 300);
    assert_eq!(plan["warnings"][0]["code"], "reach/secret-in-spec");
    assert_eq!(plan["roles"]["server"]["transport"], "ssh://u:***@10.0.0.1");
    let back: stead_model::Plan = serde_json::from_slice(&first).unwrap();
    assert_eq!(back.to_json(), first, "a stored plan is the same plan");
}

#[test]
fn what_ends_a_run_follows_from_its_roles() {
    let until = |roles: &str| Wish::of(&general(roles)).run();
    assert_eq!(until("  a: {command: [x]}\n").until, Until::Tasks);
    assert_eq!(until("  a: {kind: service, command: [x], duration_seconds: 3}\n").until, Until::Duration);
    let signal = until("  a: {kind: service, command: [x]}\n");
    assert_eq!((signal.until, signal.timeout), (Until::Signal, None));
    assert_eq!(signal.roles["a"].ready, Some(json!({"method": "none"})));
    let manifest = general("  a: {kind: service, command: [x]}\nuntil: tasks\n");
    assert!(Wish::of(&manifest).problems()[0].contains("until: no role is a task"));
    let limit = |timeout| Wish { timeout, ..Wish::of(&general("  a: {command: [x]}\n")) }.run().timeout;
    assert_eq!(limit(None), Some(DEFAULT_TIMEOUT));
    assert_eq!(limit(Some(Duration::ZERO)), None);
    assert_eq!(limit(Some(Duration::from_millis(1500))), Some(Duration::from_millis(1500)));
}

/// Case 32, as far as plans go: a comparison that is not wanted is not planned.
#[test]
fn what_is_not_asked_for_is_skipped() {
    let manifest =
        general("  a: {command: [x]}\npost_run: {diff_baseline: base, fail_on: [services_added]}\n");
    let run = Wish::of(&manifest).run();
    assert_eq!(run.diff.as_ref().unwrap().from, Path::new("/lab/base"));
    let without = Wish { no_diff: true, no_analyze: true, ..Wish::of(&manifest) }.compile().unwrap();
    assert_eq!((without.run.diff.as_ref(), without.run.analyze), (None, Analyze::No));
    let skipped = without.compiled.plan.tasks.iter().filter(|task| !task.settings.when.is_empty());
    assert_eq!(skipped.map(|task| task.name.as_str()).collect::<Vec<_>>(), ["analyze", "diff"]);
    assert!(without.phases_text().contains("diff     skipped: not asked for"), "{}", without.phases_text());
}

#[test]
fn files_are_staged_once_and_inside_the_workdir() {
    let files = &[("bin/store", "x"), ("b/store", "y")];
    let manifest = |list: &str| general(&format!("  a: {{command: [./store], files: [{list}]}}\n"));
    let run =
        Wish { files, ..Wish::of(&manifest("bin/store, {from: b/store, to: lib/other, mode: '0640'}")) }
            .run();
    let staged: Vec<(&str, u32)> =
        run.roles["a"].files.iter().map(|file| (file.to.as_str(), file.mode)).collect();
    assert_eq!(staged, [("store", 0o755), ("lib/other", 0o640)]);
    for (list, wanted) in [
        ("bin/store, b/store", "roles.a.files[1]: `store` is staged twice"),
        ("nope", "roles.a.files[0]: there is no file `nope`"),
        ("{from: bin/store, to: ../x}", "roles.a.files[0].to: `../x` leaves the workdir"),
        ("{from: bin/store, to: /x}", "roles.a.files[0].to: `/x` is absolute"),
        ("'{{ role.workdir }}/x'", "roles.a.files[0]: `role.workdir` is not known yet"),
    ] {
        let found = Wish { files, ..Wish::of(&manifest(list)) }.problems();
        assert!(found.len() == 1 && found[0].contains(wanted), "{list}: {found:?}");
    }
}

#[test]
fn artifacts_stay_inside_the_workdir() {
    for bad in ["/x", "../x", "a/../b", "stdout.log", "'[ab'", "'[z-a]'"] {
        let found = Wish::of(&general(&format!("  a: {{command: [x], artifacts: [{bad}]}}\n"))).problems();
        assert!(found.len() == 1 && found[0].contains("roles.a.artifacts[0]"), "{bad}: {found:?}");
    }
    let run =
        Wish::of(&general("  a: {command: [x], artifacts: ['**/*.json', {path: '[]a]', required: true}]}\n"))
            .run();
    let paths: Vec<&str> = run.roles["a"].artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
    assert_eq!(paths, ["**/*.json", "[]a]", "*.pcap", "*.pcapng"]);
}
