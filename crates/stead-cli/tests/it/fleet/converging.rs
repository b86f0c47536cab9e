//! Commits, and what runs because of them.

use rustix::process::Signal;

use super::daemons::has_nix;
use super::{Fleet, hash_of, instances};

/// Case 1: a new fleet converges by itself, and so does a commit that changes `count`; Ctrl-C leaves nothing.
#[test]
fn a_new_fleet_converges_and_follows_commits() {
    let mut fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    let status = fleet.converged(&first);
    assert_eq!(instances(&status), ["cache/0", "web/0", "web/1"]);
    assert_eq!((&status["state"], &status["convergence_percent"]), (&"converged".into(), &100.into()));
    assert_eq!(status["commit"], first.as_str());
    fleet.stead(&["status"]).exits(0).says("converged").says("web/1");

    let second = fleet.commit("manifests/fleet.yaml", "count: 2", "count: 4");
    let status = fleet.converged(&second);
    assert_eq!(instances(&status), ["cache/0", "web/0", "web/1", "web/2", "web/3"]);
    assert!(status["generation"].as_u64() > Some(1));
    assert_eq!(fleet.end(Signal::INT), Some(130));
    fleet.stead(&["status"]).exits(7);
}

/// Cases 15 (of F15) and 27: a spec that changes replaces exactly what uses it, and a revert goes back.
#[test]
fn a_changed_spec_replaces_what_uses_it_and_a_revert_goes_back() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    let before = fleet.converged(&first);
    let second = fleet.commit("specs/web.yaml", "[nginx]", "[nginx, curl]");
    let changed = fleet.converged(&second);
    assert_eq!(hash_of(&before, "cache/0"), hash_of(&changed, "cache/0"));
    assert_ne!(hash_of(&before, "web/0"), hash_of(&changed, "web/0"));
    assert_eq!(hash_of(&changed, "web/0"), hash_of(&changed, "web/1"));
    fleet.git(&["revert", "--no-edit", "HEAD"]);
    let third = fleet.git(&["rev-parse", "HEAD"]);
    let back = fleet.converged(&third);
    assert_eq!(hash_of(&before, "web/0"), hash_of(&back, "web/0"));
    assert!(back["generation"].as_u64() > changed["generation"].as_u64());
}

/// Case 27: what only `stead create` does fails with file and line, and what runs stays.
#[test]
fn a_bad_commit_fails_with_its_place_and_changes_nothing() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    let bad = fleet.commit("manifests/fleet.yaml", "{name: cache,", "{name: cache, parent: web,");
    let waited = fleet.stead(&["wait", "--commit", &bad, "--timeout", "150s"]).exits(1);
    let waited = waited.says("manifests/fleet.yaml");
    drop(waited);
    let status = fleet.status();
    let groups = status["groups"].as_array().unwrap();
    let default = groups.iter().find(|group| group["group"] == "default").unwrap();
    assert_eq!(
        (&status["state"], &default["active"]["commit"]),
        (&"degraded".into(), &first.as_str().into())
    );
    // What is shown first is what runs, and not what was taken of a commit that failed.
    assert_eq!(
        (&status["commit"], &status["generation"]),
        (&first.as_str().into(), &default["active"]["generation"])
    );
    fleet.stead(&["status"]).exits(11).says(&format!("at {}", &first[..12]));
    assert_eq!(instances(&status), ["cache/0", "web/0", "web/1"]);
    let good = fleet.commit("manifests/fleet.yaml", "{name: cache, parent: web,", "{name: cache,");
    fleet.converged(&good);
}

/// F1, F8: everything is killed at once; what runs goes on, and is adopted by the next start.
#[test]
fn a_killed_fleet_goes_on_where_it_was() {
    let mut fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    let before = fleet.converged(&first);
    fleet.end(Signal::KILL);
    fleet.dev();
    let after = fleet.converged(&first);
    assert_eq!(instances(&before), instances(&after));
    let uptime = |status: &serde_json::Value| status["instances"][1]["uptime_ms"].as_u64().unwrap();
    assert!(uptime(&after) > uptime(&before), "it was not started anew");
    assert_eq!(before["generation"], after["generation"]);
}

/// Section 14: a flake needs nothing but its repository: what it builds goes through a cache that the fleet makes for itself.
#[test]
fn a_flake_needs_nothing_but_its_repository() {
    if !has_nix() {
        return;
    }
    let fleet = Fleet::of_flake(
        r#"{
  outputs = { self }: let
    image = derivation {
      name = "vm-web"; system = "x86_64-linux"; builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; echo one > $out/text" ];
    };
  in {
    orchestrator.vms.web = {
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; artifacts = [ "${image}/text" ]; argv = [ "/bin/sleep" "100000" ]; };
    };
    orchestrator.vmImages = { inherit image; };
  };
}
"#,
    );
    let status = fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    assert_eq!(instances(&status), ["web/0"]);
    let cached = std::fs::read_dir(fleet.lab.path("state/fleet/nix-cache")).unwrap().flatten();
    let names: Vec<String> = cached.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.ends_with(".narinfo")), "{names:?}");
}
