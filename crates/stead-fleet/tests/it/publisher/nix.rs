//! Flakes, with real Nix and without a network: derivations whose builder is the shell of this machine.

use std::fs;
use std::process::Command;

use stead_fleet::api::{GroupPipeline, PipelineFailure};
use stead_fleet::events::{Events, Line};
use stead_fleet::publisher::{Ending, Published};
use stead_model::fleet::Artifact;
use stead_model::fleet::state::Outcome;

use super::world::{Daemon, TestMaster, World};

/// Whether Nix is there; says so if not.
#[expect(clippy::print_stdout, reason = "what is skipped says why")]
pub(super) fn has_nix() -> bool {
    let is_there = Command::new("nix").arg("--version").output().is_ok_and(|said| said.status.success());
    if !is_there {
        println!("skipped: no nix here");
    }
    is_there
}

/// Returns a world with keys, and what its `publisher.yaml` says of Nix.
pub(super) fn world() -> (World, String) {
    let world = World::new();
    let key = Command::new("nix")
        .args([
            "--extra-experimental-features",
            "nix-command",
            "key",
            "generate-secret",
            "--key-name",
            "lab-1",
        ])
        .output()
        .unwrap();
    fs::write(world.path("secret"), key.stdout).unwrap();
    let more = nix_yaml(&world, "");
    (world, more)
}

pub(super) fn nix_yaml(world: &World, more: &str) -> String {
    let directory = world.directory.path().display();
    format!(
        "nix:\n  store: {directory}/store\n  cache: file://{directory}/cache\n  secret_key_file: {directory}/secret\n  settings: {{sandbox: false, substituters: '', build-users-group: '', sandbox-paths: /bin /lib /lib64 /usr}}\n{more}"
    )
}

const HEAD: &str = r#"    image = name: text: derivation {
      inherit name;
      system = "x86_64-linux";
      builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; echo '${text}' > $out/disk.raw; echo kernel > $out/vmlinux" ];
    };
    vm = image: replicas: {
      inherit replicas;
      resources = { cpuMilli = 1000; memMiB = 512; };
      runtime = { kernel = "${image}/vmlinux"; disks = [ { image = "${image}/disk.raw"; } ]; };
    };
    web = image "vm-web" "web one";
    db = image "vm-db" "db one";
"#;

/// Writes a flake: what it binds beyond the usual, and what it gives.
pub(super) fn flake(world: &World, bound: &str, outputs: &str) {
    world.write(
        "flake.nix",
        &format!("{{\n  outputs = {{ self }}: let\n{HEAD}{bound}  in {{\n{outputs}  }};\n}}\n"),
    );
}

pub(super) const VMS: &str = "    orchestrator.vms = { web = vm web 2; db = vm db 1; };\n";
pub(super) const SET: &str = "    orchestrator.vmImages = { inherit web db; };\n";

fn row<'a>(published: &'a Published, group: &str) -> &'a GroupPipeline {
    published.report.groups.iter().find(|row| row.group.as_str() == group).unwrap()
}

fn failure<'a>(published: &'a Published, group: &str) -> &'a PipelineFailure {
    row(published, group).failure.as_ref().unwrap_or_else(|| panic!("{:?}", published.report))
}

/// Cases 2, 6: a flake is published; a commit of a README alone changes no hash; images as one derivation are the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_flake_is_built_cached_signed_and_published() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("first");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    let one = master.active("default").unwrap();
    assert_eq!((one.number, one.specs.len(), one.specs[1].replicas), (1, 2, 2));
    for (_, artifact) in one.specs[1].artifacts() {
        let Artifact::Store { path, sub, nar_hash } = artifact else { panic!("{artifact:?}") };
        assert!(path.as_str().ends_with("-vm-web") && sub.is_some() && nar_hash.starts_with("sha256-"));
    }
    let narinfos = fs::read_dir(world.path("cache")).unwrap().flatten();
    let narinfos: Vec<String> = narinfos
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "narinfo"))
        .map(|entry| fs::read_to_string(entry.path()).unwrap())
        .collect();
    assert_eq!(narinfos.len(), 2);
    assert!(narinfos.iter().all(|text| text.contains("Sig: lab-1:")), "{narinfos:?}");

    world.write("README", "hello");
    world.commit("readme");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    let two = master.active("default").unwrap();
    assert_eq!((two.number, two.specs_hash), (2, one.specs_hash));

    let all = "    all = derivation { name = \"all\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; args = [ \"-c\" \"echo ${web} ${db} > $out\" ]; };\n";
    flake(&world, all, &format!("{VMS}    orchestrator.vmImages = all;\n"));
    world.commit("one derivation");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!(master.active("default").unwrap().specs_hash, one.specs_hash);
}

/// A flake with something wrong, and what is told of it.
struct Broken {
    bound: &'static str,
    outputs: String,
    code: u8,
    stage: &'static str,
    vm: Option<&'static str>,
    words: [&'static str; 2],
}

/// Case 5, F10: five failures, each told apart, with file and line or VM and field; the next good commit recovers.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_flake_is_told() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("first");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    let failing = "    bad = derivation { name = \"vm-bad\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; args = [ \"-c\" \"echo no such luck >&2; exit 3\" ]; };\n";
    let images = "    orchestrator.vmImages = { inherit web";
    let cases = [
        Broken {
            bound: "",
            outputs: format!("    orchestrator.vms = {{ web = ; }};\n{SET}"),
            code: 1,
            stage: "evaluated",
            vm: None,
            words: ["syntax error", "flake.nix:"],
        },
        Broken {
            bound: "",
            outputs: format!("    orchestrator.vms.web = vm web 2 // {{ labels = x: x; }};\n{SET}"),
            code: 1,
            stage: "evaluated",
            vm: None,
            words: ["function", "flake.nix:"],
        },
        Broken {
            bound: "",
            outputs: format!(
                "    orchestrator.vms.web = vm web 2 // {{ runtime.kernel = builtins.getEnv \"KERNEL\"; }};\n{SET}"
            ),
            code: 3,
            stage: "evaluated",
            vm: Some("web"),
            words: ["VM `web`", "kernel"],
        },
        Broken {
            bound: failing,
            outputs: format!(
                "    orchestrator.vms = {{ web = vm web 2; bad = vm bad 1; }};\n{images} bad; }};\n"
            ),
            code: 1,
            stage: "built",
            vm: Some("bad"),
            words: ["builder for", "vm-bad"],
        },
        Broken {
            bound: "    other = image \"vm-other\" \"not built\";\n",
            outputs: format!(
                "    orchestrator.vms = {{ web = vm web 2; other = vm other 1; }};\n{images}; }};\n"
            ),
            code: 1,
            stage: "built",
            vm: Some("other"),
            words: ["VM `other`, runtime.kernel", "fleet/not-built"],
        },
    ];
    for Broken { bound, outputs, code, stage, vm, words } in cases {
        flake(&world, bound, &outputs);
        let commit = world.commit("broken");
        let published = world.once(&master, &more).await;
        assert_eq!(published.ending.exit_code(), code, "{words:?}: {:?}", published.report);
        let failure = failure(&published, "default");
        assert_eq!((failure.stage.as_str(), failure.vm.as_deref()), (stage, vm), "{failure:?}");
        for word in words {
            assert!(failure.error.contains(word), "{word}: {}", failure.error);
        }
        assert_eq!(row(&published, "default").commit, commit);
        let log = fs::read_to_string(failure.log.as_ref().unwrap()).unwrap();
        assert!(log.contains("nix"), "{log}");
        assert_eq!(master.active("default").unwrap().number, 1);
    }
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("good again");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    assert_eq!(master.active("default").unwrap().number, 7);
}

/// Case 16: a group that fails leaves the others alone; the same id in two groups names both; one that vanished is empty, and
/// held.
#[tokio::test(flavor = "multi_thread")]
async fn groups_go_on_their_own() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    let edge = "    edge = image \"vm-edge\" \"edge one\";\n";
    let group = "    orchestrator.groups.edge = { vms.edge = vm edge 1; vmImages = { inherit edge; }; };\n";
    flake(&world, edge, &format!("{VMS}{SET}{group}"));
    world.commit("two groups");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!(master.active("edge").unwrap().specs.len(), 1);

    let broken = edge.replace("image \"vm-edge\" \"edge one\"", "throw \"edge is broken\"");
    flake(&world, &broken, &format!("    orchestrator.vms = {{ web = vm web 3; }};\n{SET}{group}"));
    world.commit("edge is broken");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Failed);
    assert!(failure(&published, "edge").error.contains("edge is broken"));
    assert_eq!(row(&published, "default").stage, "submitted");
    assert_eq!((master.active("default").unwrap().number, master.active("edge").unwrap().number), (2, 1));

    flake(
        &world,
        edge,
        &format!(
            "    orchestrator.vms = {{ web = vm web 3; }};\n{SET}    orchestrator.groups.edge = {{ vms.web = vm edge 1; vmImages = {{ inherit edge; }}; }};\n"
        ),
    );
    world.commit("the same id twice");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Invalid);
    let error = &failure(&published, "edge").error;
    assert!(error.contains("`default`") && error.contains("`edge`"), "{error}");

    flake(&world, "", &format!("    orchestrator.vms = {{ web = vm web 3; }};\n{SET}"));
    world.commit("edge is gone");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Refused(Outcome::Held), "{:?}", published.report);
    assert_eq!(master.active("edge").unwrap().number, 1);
}

/// Section 6: VMs change groups in one commit, one way and both ways at once. Where one of the groups fails the other one is
/// not published either: what goes to a group that failed runs on where it is.
#[tokio::test(flavor = "multi_thread")]
async fn vms_change_groups_in_one_commit() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    let edge = "    edge = image \"vm-edge\" \"edge one\";\n";
    let write = |bound: &str, default: &str, others: &str| {
        let set = "vmImages = { inherit web db edge; }";
        let groups = format!(
            "    orchestrator.vms = {{ {default} }};\n    orchestrator.{set};\n    \
             orchestrator.groups.edge = {{ vms = {{ {others} }}; {set}; }};\n"
        );
        flake(&world, bound, &groups);
    };
    let ids = |group: &str| {
        let active = master.active(group).unwrap();
        let ids: Vec<String> = active.specs.iter().map(|spec| spec.id.to_string()).collect();
        (active.number, ids.join(" "))
    };
    write(edge, "web = vm web 1; db = vm db 1;", "edge = vm edge 1;");
    world.commit("two groups");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);

    write(edge, "web = vm web 1;", "edge = vm edge 1; db = vm db 1;");
    world.commit("one way");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!((ids("default"), ids("edge")), ((2, "web".to_owned()), (2, "db edge".to_owned())));

    write(edge, "db = vm db 1;", "edge = vm edge 1; web = vm web 1;");
    world.commit("both ways");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!((ids("default"), ids("edge")), ((3, "db".to_owned()), (3, "edge web".to_owned())));
    let together = master.calls().into_iter().filter(|call| call.ends_with("together")).count();
    assert_eq!(together, 4, "{:?}", master.calls());

    let broken = "    edge = derivation { name = \"vm-edge\"; system = \"x86_64-linux\"; builder = \"/bin/false\"; };\n";
    let set = "vmImages = { inherit web db; }";
    flake(
        &world,
        broken,
        &format!(
            "    orchestrator.vms = {{ db = vm db 1; web = vm web 1; }};\n    orchestrator.{set};\n    \
             orchestrator.groups.edge = {{ vms = {{ edge = vm edge 1; }}; vmImages = {{ inherit edge; }}; }};\n"
        ),
    );
    world.commit("back, and one fails");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Failed, "{:?}", published.report);
    assert_eq!(failure(&published, "edge").stage, "built");
    let error = &failure(&published, "default").error;
    assert!(error.contains("VMs move between it and group `edge`, which failed"), "{error}");
    assert_eq!((ids("default").0, ids("edge").0), (3, 3), "both keep what they have");
}

/// Section 6, case 24: to a master of before protocol 1.5 a VM goes from group to group, either way, in one commit: whoever
/// gives it goes first, and who gets it is tried again at once. What two groups swap is told, and both keep what they have.
#[tokio::test(flavor = "multi_thread")]
async fn vms_change_groups_under_an_old_master() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    master.set_old();
    let write = |default: &str, others: &str| {
        let set = "vmImages = { inherit web db; }";
        let groups = format!(
            "    orchestrator.vms = {{ {default} }};\n    orchestrator.{set};\n    \
             orchestrator.groups.edge = {{ vms = {{ {others} }}; {set}; }};\n"
        );
        flake(&world, "", &groups);
        world.commit("groups");
    };
    let ids = |group: &str| {
        let active = master.active(group).unwrap();
        let ids: Vec<String> = active.specs.iter().map(|spec| spec.id.to_string()).collect();
        (active.number, ids.join(" "))
    };
    write("web = vm web 1; db = vm db 1;", "edge = vm web 1; more = vm db 1;");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    write("web = vm web 1;", "edge = vm web 1; more = vm db 1; db = vm db 1;");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!((ids("default"), ids("edge")), ((2, "web".to_owned()), (2, "db edge more".to_owned())));
    write("web = vm web 1; db = vm db 1;", "edge = vm web 1; more = vm db 1;");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!((ids("default"), ids("edge")), ((3, "db web".to_owned()), (3, "edge more".to_owned())));
    assert!(!master.calls().iter().any(|call| call.ends_with("together")), "{:?}", master.calls());

    write("db = vm db 1; more = vm db 1;", "edge = vm web 1; web = vm web 1;");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Invalid, "{:?}", published.report);
    for group in ["default", "edge"] {
        let error = &failure(&published, group).error;
        assert!(error.contains("`default`") && error.contains("`edge`"), "{error}");
        assert_eq!(ids(group).0, 3);
    }
}

/// F12 before publishing: what is corrupted or gone from the cache is not published; what is unsigned is signed again.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_is_read_back() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("first");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    let narinfo = fs::read_dir(world.path("cache"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "narinfo"))
        .unwrap();
    let text = fs::read_to_string(&narinfo).unwrap();
    let unsigned: String =
        text.lines().filter(|line| !line.starts_with("Sig:")).map(|line| format!("{line}\n")).collect();
    fs::write(&narinfo, unsigned).unwrap();
    world.write("README", "2");
    world.commit("second");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert!(fs::read_to_string(&narinfo).unwrap().contains("Sig: lab-1:"));

    let url = text.lines().find_map(|line| line.strip_prefix("URL: ")).unwrap();
    let archive = world.path("cache").join(url);
    let bits = fs::read(&archive).unwrap();
    let mut flipped = bits.clone();
    flipped[bits.len() / 2] ^= 1;
    fs::write(&archive, flipped).unwrap();
    world.write("README", "3");
    world.commit("third");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Failed, "{:?}", published.report);
    let found = failure(&published, "default");
    assert!(found.stage == "cache-verified" && found.error.contains("nar-mismatch"), "{found:?}");
    fs::remove_file(&archive).unwrap();
    let published = world.once(&master, &more).await;
    assert!(failure(&published, "default").error.contains("missing-dependency"), "{:?}", published.report);
    assert_eq!(master.active("default").unwrap().number, 2);
    fs::write(&archive, bits).unwrap();
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
}

/// Returns how often a group failed, by the events of a publisher.
fn failed(lines: &[Line], group: &str) -> usize {
    let is_it = |line: &&Line| line.fields.group.as_ref().is_some_and(|name| name.as_str() == group);
    lines.iter().filter(is_it).filter(|line| line.fields.stage == "failed").count()
}

/// F11: an evaluation that takes too long is tried twice more and has then failed for good: the old generation stays, and the
/// next publisher does not begin it again, though another group of the commit goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_out_of_bounds_is_tried_again() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    world.write("fleet.yaml", "api_version: v1\n");
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("good");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);

    let endless = "    l = builtins.genList (x: 0) 3000;\n    f = builtins.foldl' (a: x: builtins.foldl' (b: y: builtins.foldl' (c: z: c + z) b l) a l) 1 l;\n";
    flake(&world, endless, "    orchestrator.vms = { web = vm web f; };\n");
    let commit = world.commit("endless");
    let mut settings = world.settings(&nix_yaml(&world, "  eval_timeout: 4s\n"));
    let events = || Some(std::sync::Arc::new(Events::open(&world.path("events")).unwrap()));
    settings.events = events();
    master.set_away(true);
    let daemon = Daemon::start(settings.clone(), &master);
    let lines = || stead_fleet::events::read(&world.path("events")).unwrap();
    master.wait("three tries", |_| failed(&lines(), "default") == 3).await;
    daemon.stop().await;
    let before = lines();

    // The group `fleet` still waits for its number.
    settings.events = events();
    master.set_away(false);
    let daemon = Daemon::start(settings, &master);
    let is_told = |master: &TestMaster| {
        let groups = master.report().map(|report| report.groups).unwrap_or_default();
        let is_it = |row: &GroupPipeline| row.group.as_str() == "fleet" && row.commit == commit;
        groups.iter().any(|row| is_it(row) && row.stage == "submitted")
    };
    master.wait("the rest of the commit", is_told).await;
    daemon.stop().await;
    let after = lines();
    let is_default = |line: &&Line| line.fields.group.as_ref().is_some_and(|name| name.as_str() == "default");
    let more: Vec<&Line> = after.iter().skip(before.len()).filter(is_default).collect();
    assert!(more.is_empty(), "it was begun again: {more:?}");
    let report = master.report().unwrap();
    let row = report.groups.iter().find(|row| row.group.as_str() == "default").unwrap();
    let found = row.failure.as_ref().unwrap();
    assert_eq!((&row.commit, serde_json::to_value(found.class).unwrap()), (&commit, "permanent".into()));
    assert!(found.error.contains("took longer than 4s"), "{found:?}");
    assert_eq!(master.active("default").unwrap().number, 1);
}

/// F11: out of memory is told from an error in the flake, which is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_out_of_memory_is_a_want_of_memory() {
    if !has_nix() {
        return;
    }
    let (world, _) = world();
    let master = TestMaster::of(&world);
    let large = "    big = builtins.foldl' (a: b: a + builtins.length (builtins.genList (y: [ y b ]) 1000000)) 0 (builtins.genList (x: x) 1000);\n    all = builtins.genList (x: builtins.genList (y: [ x y ]) 100000) 100000;\n";
    flake(&world, large, "    orchestrator.vms = { web = vm web (builtins.deepSeq all 1); };\n");
    world.commit("large");
    let mut settings = world.settings(&nix_yaml(&world, "  memory: 700MiB\n"));
    settings.events = Some(std::sync::Arc::new(Events::open(&world.path("events")).unwrap()));
    let published = super::world::once(settings, &master).await;
    let found = failure(&published, "default");
    assert_eq!(serde_json::to_value(found.class).unwrap(), "permanent", "{found:?}");
    let lines = stead_fleet::events::read(&world.path("events")).unwrap();
    assert_eq!(failed(&lines, "default"), 3, "tried again as what wants memory is: {found:?}");
}

/// Whether some process was started with `word` among its arguments.
fn is_running(word: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
}

/// F14: a newer head ends what is built for an older one, and everything that was started for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_head_ends_an_older_build() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    let time = format!("600.{:05}", std::process::id() % 100_000);
    let slow = format!(
        "    slow = derivation {{ name = \"vm-slow\"; system = \"x86_64-linux\"; builder = \"/bin/sleep\"; args = [ \"{time}\" ]; }};\n"
    );
    flake(
        &world,
        &slow,
        "    orchestrator.vms = { slow = vm slow 1; };\n    orchestrator.vmImages = { inherit slow; };\n",
    );
    let first = world.commit("slow");
    let daemon = Daemon::start(world.settings(&more), &master);
    master.wait("the slow build", |_| is_running(&time)).await;
    flake(&world, "", &format!("{VMS}{SET}"));
    let second = world.commit("quick");
    master.wait("the second commit", |master| master.active("default").is_some()).await;
    let active = master.active("default").unwrap();
    assert_eq!((active.number, &active.commit), (2, &second));
    master.wait("the end of the slow build", |_| !is_running(&time)).await;
    let calls = master.calls();
    let of_first = format!("publish default {first:.7}");
    assert!(!calls.iter().any(|call| call.starts_with(&of_first)), "{calls:?}");
    daemon.stop().await;
}
