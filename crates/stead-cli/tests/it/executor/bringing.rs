//! Bringing the program to a target, and starting it there under another account.

use std::fs;

use serde_json::json;
use stead_model::inventory::{ExecutorMode, Host};
use stead_model::transport::{Become, BecomeMethod, SecretSource, TargetOs, TransportSpec};
use stead_model::{ErrorClass, ExitCode, Report};

use super::direct::{Place, op};

async fn touch(place: &Place) -> Report {
    let path = place.target("x");
    place
        .run(|plan| {
            plan.op("x", op("file.present", json!({"path": path}))).on("web1");
        })
        .await
}

fn cached(place: &Place) -> std::path::PathBuf {
    let entries = fs::read_dir(place.base().join("bin")).unwrap();
    let directory = entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    directory.unwrap().join("stead")
}

/// Case 8.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_brought_once() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    for _ in 0..=20 {
        let report = touch(&place).await;
        assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
        assert_eq!(place.uploads(), 1);
    }
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let program = cached(&place);
    assert_eq!((mode(&program), mode(program.parent().unwrap()), mode(&place.base())), (0o700, 0o700, 0o700));
    let runs: Vec<_> = (0..10)
        .map(|number| {
            let path = place.target(&format!("y{number}"));
            let plan = place.plan(|plan| {
                plan.lock(false);
                plan.op("y", op("file.present", json!({"path": path}))).on("web1");
            });
            place.runner().record_in(place.path(&format!("state{number}"))).run(plan)
        })
        .collect();
    for report in futures(runs).await {
        assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
    }
    assert_eq!(place.uploads(), 1);

    // A byte that is not right any more, the length kept.
    let mut bytes = fs::read(&program).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // The session that ends just now still runs the file itself.
    let other = program.with_extension("other");
    fs::write(&other, &bytes).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&other, &program).unwrap();
    assert_eq!(touch(&place).await.exit_code, ExitCode::Success);
    assert_eq!(place.uploads(), 2);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(touch(&place).await.exit_code, ExitCode::Success);
    assert_eq!(place.uploads(), 3);
}

/// Runs all at once; what a runner returns is bound to its thread.
async fn futures<T: 'static>(all: Vec<impl Future<Output = T> + 'static>) -> Vec<T> {
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = all.into_iter().map(|one| local.spawn_local(one)).collect();
    let mut done = Vec::new();
    local
        .run_until(async {
            for task in tasks {
                done.push(task.await.unwrap());
            }
        })
        .await;
    done
}

/// Case 8: a place where nothing may be executed is passed over, unless it is the one that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_cannot_hold_it_is_named() {
    let place = Place::new();
    let link = place.path("link");
    std::os::unix::fs::symlink(place.path("home"), &link).unwrap();
    let mut host = place.host();
    host.workdir = Some(link.display().to_string());
    let plan = || {
        place.plan(|plan| {
            plan.op("x", op("file.present", json!({"path": place.target("x")}))).on("web1");
        })
    };
    let report = place.runner_for(&[("web1", host.clone())]).run(plan()).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert_eq!(report.tasks[0].class, Some(ErrorClass::Permanent), "{error}");
    assert!(
        error.contains("symbolic link") && error.contains("`workdir`") && error.contains("link"),
        "{error}"
    );

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mount = Mount::new(&place.path("noexec"), "noexec,size=1m");
    host.workdir = Some(mount.0.join("stead").display().to_string());
    let report = place.runner_for(&[("web1", host)]).run(plan()).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert!(error.contains("noexec") && error.contains(&mount.0.display().to_string()), "{error}");
}

/// Case 8: without `workdir` the next place is taken.
#[test]
fn a_place_where_nothing_may_be_executed_is_passed_over() {
    stead_testkit::container::inside(|| {
        let place = Place::new();
        fs::create_dir_all("/var/lib").unwrap();
        drop(fs::remove_dir_all("/var/lib/stead"));
        let mount = Mount::new(std::path::Path::new("/var/lib/stead"), "noexec,size=1m,mode=700");
        let host = stead_model::inventory::Host { workdir: None, ..place.host() };
        let plan = place.plan(|plan| {
            plan.op("x", op("file.present", json!({"path": place.target("x")}))).on("web1");
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let report = runtime.block_on(place.runner_for(&[("web1", host)]).run(plan));
        assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
        assert!(place.path("home/.cache/stead/bin").is_dir(), "the next place has it");
        assert!(!mount.0.join("bin").exists());
    });
}

/// A mount that is gone when dropped.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(path: &std::path::Path, options: &str) -> Self {
        fs::create_dir(path).unwrap();
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(path)
            .status()
            .unwrap();
        assert!(status.success());
        Self(path.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// A disk that is full: said as such, nothing half written, and it works once there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_leaves_nothing_half_written() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let program = fs::metadata(super::direct::stead()).unwrap().len();
    let source: Vec<u8> = (0..9_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(place.path("large"), &source).unwrap();
    let plan = || {
        place.plan(|plan| {
            let params = json!({"path": place.target("large"), "source": "large"});
            plan.op("large", op("file.present", params)).on("web1");
        })
    };
    for (size, wanted) in [(program / 2, "the disk may be full"), (program + (5 << 20), "No space left")] {
        let mount = Mount::new(&place.path("small"), &format!("size={size}"));
        let mut host = place.host();
        host.workdir = Some(mount.0.join("base").display().to_string());
        let report = place.runner_for(&[("web1", host)]).run(plan()).await;
        let error = report.tasks[0].error.clone().unwrap_or_default();
        assert!(error.contains(wanted), "{report:#?}");
        assert!(!place.path("target/large").exists());
        let base = mount.0.join("base");
        // What the driver had sent ahead is read before the session goes.
        Place::until("the session is gone", || {
            let left = fs::read_dir(base.join("run")).into_iter().flatten().flatten();
            left.filter(|entry| entry.path().is_dir()).count() == 0
        });
        drop(mount);
        fs::remove_dir(place.path("small")).unwrap();
    }
    let report = place.runner().run(plan()).await;
    assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
    assert!(fs::read(place.path("target/large")).unwrap() == source);
}

/// Case 9.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_machine_gets_the_program_that_was_put_there_for_it() {
    let mut place = Place::new();
    place.stand_in("uname", "#!/bin/sh\necho Linux aarch64\n");
    let report = touch(&place).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert_eq!(report.tasks[0].class, Some(ErrorClass::Permanent), "{error}");
    for wanted in ["web1", "aarch64", "STEAD_BINARIES", env!("CARGO_PKG_VERSION")] {
        assert!(error.contains(wanted), "no {wanted} in {error}");
    }
    let binaries = place.path("binaries/aarch64");
    fs::create_dir_all(&binaries).unwrap();
    fs::copy(super::direct::stead(), binaries.join("stead")).unwrap();
    let path = place.target("x");
    let plan = place.plan(|plan| {
        plan.op("x", op("file.present", json!({"path": path}))).on("web1");
    });
    let report = place.runner_with(|reach| reach.binaries = vec![place.path("binaries")]).run(plan).await;
    assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
    assert_eq!(place.uploads(), 1);
}

/// Section 2: what the transport says of the system beats what the machine says.
#[tokio::test(flavor = "multi_thread")]
async fn a_system_that_is_told_is_not_looked_for() {
    let mut place = Place::new();
    // A machine of a name that nobody knows.
    place.stand_in(
        "uname",
        "#!/bin/sh\ncase $1 in -m) exec /usr/bin/env -i /bin/uname -m ;; *) echo Plan9 x86_64 ;; esac\n",
    );
    let report = touch(&place).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert!(error.contains("plan9-x86_64"), "{error}");
    let mut host = place.host();
    let TransportSpec::Ssh(ssh) = &mut host.transport else { panic!("not reached by SSH") };
    ssh.os = Some(TargetOs::Linux);
    let path = place.target("x");
    let plan = place.plan(|plan| {
        plan.op("x", op("file.present", json!({"path": path}))).on("web1");
    });
    let report = place.runner_for(&[("web1", host)]).run(plan).await;
    assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
}

/// Section 3: three names of one machine at once, and the program is brought once.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_one_machine_bring_the_program_once() {
    let mut place = Place::new();
    // Only what has arrived is made to last.
    place.stand_in("sync", "#!/bin/sh\necho \"$1\" >> \"$(dirname \"$0\")/sync.log\"\n");
    let hosts = [("web1", place.host()), ("web2", place.host()), ("web3", place.host())];
    let path = place.target("x");
    let plan = place.plan(|plan| {
        for (name, _) in &hosts {
            plan.op(name, op("file.present", json!({"path": format!("{path}-{name}")}))).on(name);
        }
    });
    let report = place.runner_for(&hosts).run(plan).await;
    assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
    let arrived = fs::read_to_string(place.path("bin/sync.log")).unwrap();
    assert_eq!(arrived.lines().count(), 1, "{arrived}");
}

/// Section 3: never twice. A program that was brought and is not there afterwards is said so, and not brought again.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_stay_is_not_brought_again() {
    let mut place = Place::new();
    place.stand_in("mv", "#!/bin/sh\nrm -f \"$2\"\n");
    let report = touch(&place).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert!(error.contains("the executor was brought there and is not found"), "{error}");
    assert_eq!(place.uploads(), 1);
}

/// What a host says of itself is bounded, as what its login prints is.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_says_too_much_of_itself_is_given_up() {
    let mut place = Place::new();
    place.stand_in("uname", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\n");
    let report = touch(&place).await;
    let error = report.tasks[0].error.clone().unwrap();
    assert!(error.contains("it says more than 65536 bytes about itself"), "{error}");
    assert_eq!(place.uploads(), 0);
}

/// Section 3: a command that is to run as another account is not run as the one that logs in.
#[tokio::test(flavor = "multi_thread")]
async fn another_account_without_the_executor_is_refused() {
    let place = Place::new();
    let sudo = Some(Become { method: BecomeMethod::Sudo, user: None });
    let with = |become_user, root: Option<&str>| Host {
        executor: ExecutorMode::Never,
        become_user,
        root: root.map(str::to_owned),
        ..place.host()
    };
    for (host, key) in [(with(sudo, None), "become"), (with(None, Some("/srv")), "root")] {
        let path = place.target("ran");
        let plan = place.plan(|plan| {
            plan.op("x", op("command.exec", json!({"command": "touch", "args": [path]}))).on("web1");
        });
        let report = place.runner_for(&[("web1", host)]).run(plan).await;
        let row = &report.tasks[0];
        assert_eq!(row.class, Some(ErrorClass::Invalid), "{report:#?}");
        let error = row.error.clone().unwrap();
        assert!(error.contains(&format!("`{key}`")) && error.contains("executor: never"), "{error}");
        assert!(!std::path::Path::new(&path).exists());
    }
}

/// A stand-in for `sudo`: writes down its arguments, wants the password `open-sesame` unless it was told `-n` and
/// may, and runs the rest.
const SUDO: &str = r#"#!/bin/sh
here=$(dirname "$0")
printf '%s\n' "$*" >> "$here/sudo.log"
while [ $# -gt 0 ]; do
  case $1 in
    -n) quiet=1; shift ;;
    -S) asks=1; shift ;;
    -p|-u) shift 2 ;;
    --) shift; break ;;
    *) break ;;
  esac
done
if [ -n "$quiet" ] && [ -e "$here/wants-password" ]; then
  echo 'sudo: a password is required' >&2; exit 1
fi
if [ -n "$asks" ] && [ -e "$here/wants-password" ]; then
  IFS= read -r given
  if [ "$given" != open-sesame ]; then echo 'sudo: 1 incorrect password attempt' >&2; exit 1; fi
fi
AS_ROOT=yes exec "$@"
"#;

/// Case 12.
#[tokio::test(flavor = "multi_thread")]
async fn another_account_with_and_without_a_password() {
    let mut place = Place::new();
    place.stand_in("sudo", SUDO);
    let mut host = place.host();
    host.become_user = Some(Become { method: BecomeMethod::Sudo, user: None });
    let plan = || {
        place.plan(|plan| {
            plan.op("who", op("command.shell", json!({"script": "echo root: $AS_ROOT; cat"}))).on("web1");
        })
    };
    let stdout =
        |report: &Report| report.tasks[0].data.as_ref().unwrap()["stdout"].as_str().unwrap().to_owned();
    let report = place.runner_for(&[("web1", host.clone())]).run(plan()).await;
    assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
    assert_eq!(stdout(&report), "root: yes\n");

    fs::write(place.path("bin/wants-password"), "").unwrap();
    let report = place.runner_for(&[("web1", host.clone())]).run(plan()).await;
    let row = &report.tasks[0];
    assert_eq!(row.class, Some(ErrorClass::Permanent), "{report:#?}");
    assert!(row.error.as_ref().unwrap().contains("become_password"), "{row:#?}");

    host.become_password = Some(SecretSource::Env("PASSWORD".to_owned()));
    for (password, exit_code) in [("open-sesame", ExitCode::Success), ("wrong-one", ExitCode::Failed)] {
        let environment = [("PASSWORD".to_owned(), password.to_owned())].into_iter().collect();
        let runner = place.runner_for(&[("web1", host.clone())]).environment(environment);
        let report = runner.run(plan()).await;
        assert_eq!(report.exit_code, exit_code, "{report:#?}");
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains(password), "{text}");
    }
    // A password that is not asked for does not reach the command either.
    fs::remove_file(place.path("bin/wants-password")).unwrap();
    let environment = [("PASSWORD".to_owned(), "open-sesame".to_owned())].into_iter().collect();
    let report = place.runner_for(&[("web1", host)]).environment(environment).run(plan()).await;
    assert_eq!(stdout(&report), "root: yes\n");
    let log = fs::read_to_string(place.path("bin/sudo.log")).unwrap();
    assert!(!log.contains("sesame") && !log.contains("wrong-one"), "{log}");
    let argv = place.world.started.lock().unwrap().concat().join(" ");
    assert!(!argv.contains("sesame"), "{argv}");
}
