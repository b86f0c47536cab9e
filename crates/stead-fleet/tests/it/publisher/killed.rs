//! Publishers that are killed, and what a poll costs: this test's own program as a publisher, with a `git` that counts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use stead_fleet::publisher::{self, Ending};
use tokio_util::sync::CancellationToken;

use super::nix;
use super::world::{TestMaster, World, settings};

/// `DIRECTORY`, for a publisher of that world.
const MARK: &str = "STEAD_TEST_PUBLISHER";

/// Writes a program that counts its starts, and kills who started it at one of them.
fn counting(world: &World, program: &str) {
    let directory = world.path("bin");
    fs::create_dir_all(&directory).unwrap();
    let real = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    let real = String::from_utf8(real.stdout).unwrap();
    let script = format!(
        "#!/bin/sh\nn=$(cat \"$STEAD_TEST_COUNT\" 2>/dev/null || echo 0)\nn=$((n + 1))\necho $n >\"$STEAD_TEST_COUNT\"\necho \"$*\" >>\"$STEAD_TEST_COUNT.log\"\nif [ \"$n\" = \"$STEAD_TEST_KILL\" ]; then kill -9 $PPID; exit 1; fi\nexec {} \"$@\"\n",
        real.trim()
    );
    let path = directory.join(program);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns this program as a publisher of `world`.
fn publisher_of(world: &World, test: &str, kill_at: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).stdout(Stdio::null()).stderr(Stdio::null());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = vec![world.path("bin")];
    paths.extend(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths).unwrap());
    command.env(MARK, world.directory.path()).env("STEAD_TEST_COUNT", world.path("count"));
    command.env("STEAD_TEST_KILL", kill_at.to_string());
    command
}

fn counted(world: &World) -> Vec<String> {
    let text = fs::read_to_string(world.path("count.log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work)
}

/// The publisher of the other side: once, and the end of this process.
fn be_publisher(directory: &Path, is_daemon: bool) {
    let master = TestMaster::open(&directory.join("master.jsonl"));
    let more = fs::read_to_string(directory.join("more.yaml")).unwrap_or_default();
    let mut settings = settings(directory, &more);
    if let Ok(address) = fs::read_to_string(directory.join("address")) {
        settings.file.repo = address;
    }
    block_on(async {
        if is_daemon {
            publisher::run(settings, master, CancellationToken::new()).await.unwrap();
        } else {
            publisher::once(settings, master, CancellationToken::new()).await.unwrap();
        }
    });
}

/// Kills at each program it starts and at each call of the master: whoever comes next goes on, and publishes once.
#[test]
fn a_killed_publisher_is_followed_by_one_that_publishes_once() {
    if let Some(directory) = std::env::var_os(MARK) {
        return be_publisher(Path::new(&directory), false);
    }
    let test = "publisher::killed::a_killed_publisher_is_followed_by_one_that_publishes_once";
    let mut killed = 0;
    for point in 1.. {
        let world = World::new();
        counting(&world, "git");
        world.small_site();
        world.write("fleet.yaml", "api_version: v1\n");
        world.commit("first");
        let first = block_on(world.once(&TestMaster::of(&world), ""));
        assert_eq!(first.ending, Ending::Published);
        world.manifest("  - {name: web, type: vm, preset: small, spec: web}\n");
        let commit = world.commit("second");
        // Programs first, then calls of the master, before and after they are done.
        let programs = 16;
        let mut command = publisher_of(&world, test, if point <= programs { point } else { 0 });
        if point > programs {
            command.env("STEAD_TEST_KILL_CALL", (point - programs).to_string());
        }
        let status: ExitStatus = command.status().unwrap();
        killed += u32::from(!status.success());
        if status.success() && point > programs {
            break;
        }
        let master = TestMaster::of(&world);
        let next = block_on(world.once(&master, ""));
        let is_good = matches!(next.ending, Ending::Published | Ending::NothingNew);
        assert!(is_good, "killed at {point}: {next:?}");
        for group in ["fleet", "default"] {
            let active = master.active(group).unwrap();
            assert_eq!((active.number, &active.commit), (2, &commit), "killed at {point}: {group}");
        }
        let journal = fs::read_to_string(world.path("master.jsonl")).unwrap();
        let publications = journal.lines().filter(|line| line.contains("\"publish\"")).count();
        assert_eq!(publications, 4, "killed at {point}: each group of each commit once");
        assert_eq!(block_on(world.once(&master, "")).ending, Ending::NothingNew, "killed at {point}");
    }
    assert!(killed > 12, "only {killed} were killed: this shows nothing");
}

/// As above, at each program of Nix: what was built and put before is found again.
#[test]
fn a_publisher_killed_at_nix_is_followed_too() {
    if let Some(directory) = std::env::var_os(MARK) {
        return be_publisher(Path::new(&directory), false);
    }
    if !nix::has_nix() {
        return;
    }
    let test = "publisher::killed::a_publisher_killed_at_nix_is_followed_too";
    let mut killed = 0;
    for point in 1..=20 {
        let (world, more) = nix::world();
        counting(&world, "nix");
        fs::write(world.path("more.yaml"), &more).unwrap();
        nix::flake(&world, "", &format!("{}{}", nix::VMS, nix::SET));
        let commit = world.commit("first");
        let status = publisher_of(&world, test, point).status().unwrap();
        if status.success() {
            break;
        }
        killed += 1;
        let master = TestMaster::of(&world);
        let next = block_on(world.once(&master, &more));
        assert_eq!(next.ending, Ending::Published, "killed at {point}: {next:?}");
        let active = master.active("default").unwrap();
        assert_eq!((active.number, &active.commit), (1, &commit), "killed at {point}");
        let journal = fs::read_to_string(world.path("master.jsonl")).unwrap();
        let publications = journal.lines().filter(|line| line.contains("\"publish\"")).count();
        assert_eq!(publications, 1, "killed at {point}");
    }
    assert!(killed >= 6, "only {killed} were killed: this shows nothing");
}

/// Case 2: polls of an unchanged branch start `git ls-remote` and nothing else.
#[test]
fn an_idle_poll_is_one_program() {
    if let Some(directory) = std::env::var_os(MARK) {
        return be_publisher(Path::new(&directory), true);
    }
    let world = World::new();
    counting(&world, "git");
    world.small_site();
    world.commit("first");
    block_on(world.once(&TestMaster::of(&world), ""));
    let trace = world.path("trace");
    let whole = publisher_of(&world, "publisher::killed::an_idle_poll_is_one_program", 0);
    let has_strace = Command::new("strace").arg("-V").output().is_ok_and(|said| said.status.success());
    let mut command = if has_strace {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=execve", "-o"]).arg(&trace);
        command.arg(whole.get_program()).args(whole.get_args());
        command.envs(whole.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    } else {
        println!("without strace only git is counted");
        whole
    };
    // A tracer that is killed lets what it traced go on.
    let mut child = command.process_group(0).spawn().unwrap();
    for _ in 0..1200 {
        if counted(&world).len() >= 3 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    rustix::process::kill_process_group(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    child.wait().unwrap();
    let counted = counted(&world);
    assert!(counted.len() >= 3, "{counted:?}");
    assert!(counted.iter().all(|line| line.contains(" ls-remote ")), "{counted:?}");
    if has_strace {
        let trace = fs::read_to_string(trace).unwrap();
        let started: Vec<&str> = trace.lines().filter(|line| line.contains(" = 0")).collect();
        let is_git =
            |line: &&str| line.contains("/git") || line.contains("upload-pack") || line.contains("\"cat\"");
        let others: Vec<&&str> =
            started.iter().skip(1).filter(|line| !is_git(line) && !line.contains("/cat\"")).collect();
        assert!(others.iter().all(|line| line.contains("/sh\"")), "{others:?}");
    }
}

/// Section 2: a key reaches `ssh` by its file's name, whatever that is; nothing of it is taken for a command.
#[test]
fn a_key_is_named_to_ssh_and_nothing_else() {
    if let Some(directory) = std::env::var_os(MARK) {
        return be_publisher(Path::new(&directory), false);
    }
    let world = World::new();
    let ssh = world.path("bin/ssh");
    fs::create_dir_all(world.path("bin")).unwrap();
    fs::write(&ssh, "#!/bin/sh\nfor arg; do echo \"$arg\"; done >\"$STEAD_TEST_COUNT\"\nexit 255\n").unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let key = world.path("a key; touch $HOME `id` \"x");
    let yaml = format!("credentials: {{ssh_key_file: {}}}\n", serde_json::to_string(&key).unwrap());
    fs::write(&key, "").unwrap();
    fs::write(world.path("more.yaml"), yaml).unwrap();
    fs::write(world.path("address"), "ssh://git@git.example.org/fleet.git").unwrap();
    let test = "publisher::killed::a_key_is_named_to_ssh_and_nothing_else";
    assert!(publisher_of(&world, test, 0).status().unwrap().success());
    let told = fs::read_to_string(world.path("count")).unwrap();
    let args: Vec<&str> = told.lines().collect();
    let at = args.iter().position(|arg| *arg == "-i").unwrap();
    assert_eq!(args[at + 1], key.to_str().unwrap(), "{args:?}");
    assert!(args.contains(&"BatchMode=yes") && args.contains(&"git@git.example.org"), "{args:?}");
}
