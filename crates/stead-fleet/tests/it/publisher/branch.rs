//! Branches that are rewritten, deleted, away or not signed.

use std::fs;
use std::process::Command;

use stead_fleet::events::{Ev, Events};
use stead_fleet::publisher::Ending;
use stead_model::fleet::CommitId;

use super::world::{Daemon, TestMaster, World};

/// F17, case 15: a branch that goes back is refused and shown, again and again; allowed, it is a new generation.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_branch_is_refused() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let first = world.commit("first");
    world.once(&master, "").await;
    world.manifest("  - {name: web, type: vm, preset: small}\n");
    let second = world.commit("second");
    world.once(&master, "").await;
    world.git(&["reset", "-q", "--hard", first.as_str()]);
    let mut settings = world.settings("");
    settings.events = Some(std::sync::Arc::new(Events::open(&world.path("events")).unwrap()));
    super::world::once(settings, &master).await;
    let lines = stead_fleet::events::read(&world.path("events")).unwrap();
    let told: Vec<_> = lines.iter().filter(|line| line.ev == Ev::HeadRejected).collect();
    assert!(
        matches!(&told[..], [one] if one.fields.commit.as_ref() == Some(&first)
        && one.fields.code == "rewrite-rejected"),
        "{lines:?}"
    );
    for _ in 0..2 {
        let refused = world.once(&master, "").await;
        assert_eq!((refused.ending, refused.ending.exit_code()), (Ending::Rejected, 4));
        let watcher = &refused.report.watcher;
        assert_eq!((watcher.state.as_str(), &watcher.head), ("rewrite-rejected", &Some(first.clone())));
        assert!(watcher.error.as_ref().unwrap().contains(second.as_str()), "{watcher:?}");
    }
    assert_eq!(master.active("default").unwrap().commit, second);

    // Back where it was, nothing is wrong any more, and nobody remembers that something was.
    world.git(&["reset", "-q", "--hard", second.as_str()]);
    let back = world.once(&master, "").await;
    let watcher = &back.report.watcher;
    assert_eq!((back.ending, watcher.state.as_str(), &watcher.rejected), (Ending::NothingNew, "ok", &None));
    let state = fs::read_to_string(world.path("fleet/publisher/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert!(state["rejected"].is_null(), "{state}");
    world.git(&["reset", "-q", "--hard", first.as_str()]);

    // The state is lost: the master's commit is the anchor, and the rewrite is still refused.
    fs::remove_file(world.path("fleet/publisher/state.json")).unwrap();
    let refused = world.once(&master, "").await;
    assert_eq!(
        (refused.ending, refused.report.watcher.state.as_str()),
        (Ending::Rejected, "rewrite-rejected")
    );

    // Somebody allows it, and says so in the local file.
    fs::remove_file(world.path("fleet/publisher/state.json")).unwrap();
    let allowed = world.once(&master, "rewrites: allow\n").await;
    assert_eq!(allowed.ending, Ending::Published, "{:?}", allowed.report);
    let active = master.active("default").unwrap();
    assert_eq!((active.number, active.commit), (3, first));
}

/// F18, case 15: a branch that is deleted and a repository that is away change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_gone_changes_nothing() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    world.once(&master, "").await;
    world.git(&["checkout", "-q", "-b", "other"]);
    world.git(&["branch", "-q", "-D", "main"]);
    let missing = world.once(&master, "").await;
    assert_eq!((missing.ending.exit_code(), missing.report.watcher.state.as_str()), (7, "ref-missing"));
    fs::rename(world.repo(), world.path("elsewhere")).unwrap();
    let away = world.once(&master, "").await;
    assert_eq!((away.ending.exit_code(), away.report.watcher.state.as_str()), (7, "unreachable"));
    assert_eq!(master.active("default").unwrap().number, 1);
    fs::rename(world.path("elsewhere"), world.repo()).unwrap();
    world.git(&["branch", "-q", "main"]);
    assert_eq!(world.once(&master, "").await.ending, Ending::NothingNew);
}

/// Section 5: without a master a lost state waits; with one that is away a commit takes its number later, in order.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_taken_in_the_order_of_acceptance() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    master.set_away(true);
    let waiting = world.once(&master, "").await;
    assert_eq!(
        (waiting.ending.exit_code(), waiting.report.watcher.state.as_str()),
        (7, "waiting-for-master")
    );
    master.set_away(false);
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    master.set_away(true);
    world.write("README", "2");
    let second = world.commit("second");
    assert_eq!(world.once(&master, "").await.ending, Ending::Away);
    world.write("README", "3");
    let third = world.commit("third");
    assert_eq!(world.once(&master, "").await.ending, Ending::Away);
    master.set_away(false);
    let published = world.once(&master, "").await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!((master.reserved(&second), master.reserved(&third)), (Some(2), Some(3)));
    assert_eq!(master.active("default").unwrap().number, 3);
}

/// Case 12: two publishers on one repository: one Accepted and one Duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn two_publishers_agree() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let mut second = world.settings("");
    second.directory = world.path("fleet2");
    // Its state is new: it asks the master, and publishes what the head is, in case some group is missing.
    assert_eq!(super::world::once(second, &master).await.ending, Ending::Published);
    let calls = master.calls();
    let published: Vec<&String> = calls.iter().filter(|call| call.starts_with("publish")).collect();
    assert!(published[0].ends_with("1 Accepted") && published[1].ends_with("1 Duplicate"), "{calls:?}");
    assert_eq!(published.len(), 2);
}

/// Section 5: a head that is replaced before it stayed for long enough is `superseded`, and nothing of it is evaluated.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_stay_is_superseded() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let first = world.commit("first");
    let mut settings = world.settings("");
    settings.file.debounce = std::time::Duration::from_secs(3);
    settings.events = Some(std::sync::Arc::new(Events::open(&world.path("events")).unwrap()));
    let daemon = Daemon::start(settings, &master);
    let lines = || stead_fleet::events::read(&world.path("events")).unwrap();
    let is_seen = |commit: &CommitId| {
        lines().iter().any(|line| line.ev == Ev::HeadSeen && line.fields.commit.as_ref() == Some(commit))
    };
    master.wait("the first head", |_| is_seen(&first)).await;
    let second = world.commit("second");
    master.wait("the second commit", |master| master.active("default").is_some()).await;
    daemon.stop().await;
    assert_eq!(master.active("default").unwrap().commit, second);
    let of_first: Vec<_> =
        lines().into_iter().filter(|line| line.fields.commit.as_ref() == Some(&first)).collect();
    // On a busy machine it may have stayed for long enough.
    if !of_first.iter().any(|line| line.fields.stage == "verified") {
        let stages: Vec<&str> = of_first.iter().map(|line| line.fields.stage.as_str()).collect();
        assert_eq!(stages, ["", "superseded"], "{of_first:?}");
        assert!(of_first[1].fields.reason.contains(second.as_str()), "{of_first:?}");
        assert_eq!(master.reserved(&first), None);
    }
}

/// Section 2: what is wrong with `fleet.yaml` is told of the group that it is, and of those that cannot go on without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_fleet_file_fails_its_own_group() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.write("fleet.yaml", "api_version: v1\npolicy: {brakes: {}}\n");
    world.commit("first");
    let published = world.once(&master, "").await;
    assert_eq!(published.ending, Ending::Invalid);
    for group in ["default", "fleet"] {
        let row = published.report.groups.iter().find(|row| row.group.as_str() == group).unwrap();
        let failure = row.failure.as_ref().unwrap();
        assert!(failure.error.contains("fleet.yaml:2:"), "{failure:?}");
    }
    world.write("fleet.yaml", "api_version: v1\n");
    world.commit("second");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    assert!(master.active("fleet").is_some());
}

/// Section 5: `--commit` publishes a commit that the branch contains, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_may_be_named() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let first = world.commit("first");
    world.commit("second");
    let mut settings = world.settings("");
    settings.commit = Some(first.clone());
    assert_eq!(super::world::once(settings.clone(), &master).await.ending, Ending::Published);
    assert_eq!(master.active("default").unwrap().commit, first);
    world.git(&["checkout", "-q", "-b", "other"]);
    settings.commit = Some(world.commit("elsewhere"));
    let refused = super::world::once(settings, &master).await;
    assert_eq!(refused.ending, Ending::Rejected);
    assert!(refused.report.watcher.error.unwrap().contains("does not contain"));
}

/// Makes an SSH key and returns the line of who may sign with it.
fn key(world: &World, name: &str) -> String {
    let path = world.path(name);
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).status();
    assert!(made.unwrap().success());
    let public = fs::read_to_string(world.path(&format!("{name}.pub"))).unwrap();
    format!("tester@example.org {public}")
}

fn sign_with(world: &World, name: &str) {
    world.git(&["config", "gpg.format", "ssh"]);
    world.git(&["config", "user.signingkey", world.path(name).to_str().unwrap()]);
    world.git(&["config", "commit.gpgsign", "true"]);
}

/// Case 15: unsigned commits and unknown keys are refused and do not advance; `range` looks below the head.
#[tokio::test(flavor = "multi_thread")]
async fn signatures_are_checked() {
    let world = World::new();
    let master = TestMaster::of(&world);
    let allowed = key(&world, "good");
    key(&world, "bad");
    fs::write(world.path("allowed"), allowed).unwrap();
    let signers = world.path("allowed");
    let head = format!("verify: head\nallowed_signers: {}\n", signers.display());
    let range = format!("verify: range\nallowed_signers: {}\n", signers.display());
    world.small_site();
    sign_with(&world, "good");
    let first = world.commit("signed");
    assert_eq!(world.once(&master, &head).await.ending, Ending::Published);

    world.git(&["config", "commit.gpgsign", "false"]);
    let unsigned = world.commit("unsigned");
    let refused = world.once(&master, &head).await;
    assert_eq!(
        (refused.ending.exit_code(), refused.report.watcher.state.as_str()),
        (4, "signature-rejected")
    );
    let error = refused.report.watcher.error.unwrap();
    assert!(error.contains("(unsigned)") && error.contains(unsigned.as_str()), "{error}");
    assert_eq!(refused.report.watcher.rejected, Some(unsigned.clone()));

    sign_with(&world, "bad");
    world.commit("unknown key");
    let error = world.once(&master, &head).await.report.watcher.error.unwrap();
    assert!(error.contains("(unknown-key)") && error.contains("SHA256:"), "{error}");

    // A good head above them: `head` takes it, `range` does not.
    sign_with(&world, "good");
    let good = world.commit("signed again");
    let refused = world.once(&master, &range).await;
    assert_eq!(refused.ending, Ending::Rejected, "{:?}", refused.report);
    assert_eq!(master.active("default").unwrap().commit, first);
    let better = world.commit("and once more");
    assert_eq!(world.once(&master, &head).await.ending, Ending::Published);
    assert_ne!(good, better);
    assert_eq!(master.active("default").unwrap().commit, better);
    world.commit("signed, above an accepted one");
    assert_eq!(world.once(&master, &range).await.ending, Ending::Published);
}

/// Case 15: `range` looks at every new commit of a rewritten branch, too, where rewrites are allowed.
#[tokio::test(flavor = "multi_thread")]
async fn every_new_commit_of_a_rewritten_branch_is_checked() {
    let world = World::new();
    let master = TestMaster::of(&world);
    fs::write(world.path("allowed"), key(&world, "good")).unwrap();
    let signers = world.path("allowed");
    let more = format!("verify: range\nrewrites: allow\nallowed_signers: {}\n", signers.display());
    world.small_site();
    sign_with(&world, "good");
    let root = world.commit("signed");
    world.commit("signed, and taken back later");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    let active = master.active("default").unwrap().commit;

    world.git(&["reset", "--quiet", "--hard", root.as_str()]);
    world.git(&["config", "commit.gpgsign", "false"]);
    let unsigned = world.commit("unsigned");
    world.git(&["config", "commit.gpgsign", "true"]);
    world.commit("signed, above an unsigned one");
    let refused = world.once(&master, &more).await;
    assert_eq!(refused.ending, Ending::Rejected, "{:?}", refused.report);
    let error = refused.report.watcher.error.unwrap();
    assert!(error.contains("(unsigned)") && error.contains(unsigned.as_str()), "{error}");
    assert_eq!(master.active("default").unwrap().commit, active);

    world.git(&["reset", "--quiet", "--hard", root.as_str()]);
    let rewritten = world.commit("signed, instead");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    assert_eq!(master.active("default").unwrap().commit, rewritten);
}

/// A signature that was cut out of another commit does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_of_another_commit_is_bad() {
    let world = World::new();
    let master = TestMaster::of(&world);
    fs::write(world.path("allowed"), key(&world, "good")).unwrap();
    world.small_site();
    sign_with(&world, "good");
    world.commit("signed");
    let text = world.git(&["cat-file", "commit", "HEAD"]);
    let forged = text.replace("\n\nsigned", "\n\nforged");
    assert_ne!(text, forged);
    fs::write(world.path("forged"), format!("{forged}\n")).unwrap();
    let id = world.git(&["hash-object", "-t", "commit", "-w", world.path("forged").to_str().unwrap()]);
    world.git(&["update-ref", "refs/heads/main", &id]);
    let more = format!("verify: head\nallowed_signers: {}\n", world.path("allowed").display());
    let error = world.once(&master, &more).await.report.watcher.error.unwrap();
    assert!(error.contains("(bad)"), "{error}");
    assert!(master.active("default").is_none());
}

/// Section 2: passwords are not written into addresses.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_a_password_is_refused() {
    let world = World::new();
    let master = TestMaster::of(&world);
    let mut settings = world.settings("");
    settings.file.repo = "https://me:hunter2@example.org/repo".to_owned();
    let refused =
        stead_fleet::publisher::once(settings, master, tokio_util::sync::CancellationToken::new()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("token_file") && !error.contains("hunter2"), "{error}");
}

/// Section 2: a file that is named and not there is told by its key and its path, before anything else is blamed.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_named_must_be_there() {
    let world = World::new();
    let gone = world.path("gone").display().to_string();
    for (key, more) in [
        ("credentials.token_file", format!("credentials: {{token_file: {gone}}}\n")),
        ("credentials.ssh_key_file", format!("credentials: {{ssh_key_file: {gone}}}\n")),
        ("allowed_signers", format!("verify: head\nallowed_signers: {gone}\n")),
        ("webhook.secret_file", format!("webhook: {{secret_file: {gone}}}\n")),
    ] {
        let (settings, master) = (world.settings(&more), TestMaster::of(&world));
        let stop = tokio_util::sync::CancellationToken::new();
        let refused = stead_fleet::publisher::once(settings, master, stop).await.unwrap_err();
        assert!(matches!(refused, stead_fleet::publisher::PublishError::Settings(_)), "{refused:?}");
        let error = refused.to_string();
        assert!(error.contains(&format!("`{key}` {gone}")), "{key}: {error}");
    }
}

/// Runs a program of GnuPG in `home`.
fn gnupg(program: &str, home: &std::path::Path, args: &[&str]) -> String {
    let said = Command::new(program).arg("--homedir").arg(home).args(args).output().unwrap();
    assert!(said.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// Case 15: OpenPGP, where whoever is in `gpg_home` may sign and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn signatures_of_openpgp_are_checked() {
    if Command::new("gpg").arg("--version").output().is_err() {
        println!("skipped: no gpg here");
        return;
    }
    let world = World::new();
    let master = TestMaster::of(&world);
    for name in ["keys", "others"] {
        fs::create_dir(world.path(name)).unwrap();
        fs::set_permissions(world.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
    let home = world.path("keys");
    let make =
        ["--batch", "--passphrase", "", "--quick-gen-key", "tester@example.org", "ed25519", "sign", "never"];
    gnupg("gpg", &home, &make);
    world.small_site();
    let wrapper = world.path("sign");
    fs::write(&wrapper, format!("#!/bin/sh\nexec gpg --homedir {} \"$@\"\n", home.display())).unwrap();
    fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    world.git(&["config", "gpg.program", wrapper.to_str().unwrap()]);
    world.git(&["config", "user.signingkey", "tester@example.org"]);
    world.git(&["config", "commit.gpgsign", "true"]);
    world.commit("signed");
    gnupg("gpgconf", &home, &["--kill", "all"]);
    let more = |home: &str| format!("verify: head\ngpg_home: {}\n", world.path(home).display());
    let refused = world.once(&master, &more("others")).await;
    let error = refused.report.watcher.error.unwrap();
    assert!(refused.ending == Ending::Rejected && error.contains("(unknown-key)"), "{error}");
    fs::remove_file(world.path("fleet/publisher/state.json")).unwrap();
    let taken = world.once(&master, &more("keys")).await;
    assert_eq!(taken.ending, Ending::Published, "{:?}", taken.report);
    for home in ["keys", "others"] {
        gnupg("gpgconf", &world.path(home), &["--kill", "all"]);
    }
}

/// What was refused is looked into again by the next publisher, under the settings it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_head_is_taken_once_the_settings_allow_it() {
    let world = World::new();
    world.small_site();
    world.commit("first");
    let master = TestMaster::of(&world);
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    world.git(&["commit", "--quiet", "--amend", "--message", "rewritten"]);
    for _ in 0..2 {
        assert_eq!(world.once(&master, "").await.ending, Ending::Rejected);
    }
    let published = world.once(&master, "rewrites: allow\n").await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!(published.report.watcher.rejected, None);
}

/// Whoever is ended before anything is known says so, and tells the master nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_is_ended_says_so() {
    let world = World::new();
    world.small_site();
    world.commit("first");
    let master = TestMaster::of(&world);
    let shutdown = tokio_util::sync::CancellationToken::new();
    shutdown.cancel();
    let ended =
        stead_fleet::publisher::once(world.settings(""), master.clone() as _, shutdown).await.unwrap();
    assert_eq!((ended.ending, ended.ending.exit_code()), (Ending::Cancelled, 130));
    assert!(master.report().is_none() && master.calls().is_empty());
}

/// F9: a master that lost its state gets what it had, though the branch has nothing new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lost_its_state_gets_it_again() {
    let world = World::new();
    world.small_site();
    let head = world.commit("one");
    let master = TestMaster::of(&world);
    let daemon = Daemon::start(world.settings(""), &master);
    let is_active =
        |master: &TestMaster| master.active("default").is_some_and(|active| active.commit == head);
    master.wait("publication", is_active).await;
    let is_told = |master: &TestMaster| {
        let groups = master.report().map(|report| report.groups).unwrap_or_default();
        !groups.is_empty() && groups.iter().all(|group| group.stage == "submitted")
    };
    master.wait("report", is_told).await;
    master.lose_state();
    assert!(!is_active(&master));
    master.wait("another publication", is_active).await;
    daemon.stop().await;
}
