//! F9 with real processes: a master whose store is gone, while its workers and its publisher go on.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::daemons::{Daemons, has_nix, is_alive, starts};
use super::silent::{places, until};

/// Everything says when it is started; `one` must not run twice, and says so if it does.
const FLAKE: &str = r#"{
  outputs = { self }: let
    vm = name: script: more: {
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; argv = [ "/bin/sh" "-c" "${script} echo ${name} $$ >>@/starts; exec sleep 100000" ]; };
    } // more;
  in {
    orchestrator.vms = {
      web = vm "web" "" { replicas = 3; };
      one = vm "one" "exec 9>>@/lock; /usr/bin/flock -n 9 || echo twice >>@/twice;" { singleton = true; };
    };
    orchestrator.groups.edge = { vms.cam = vm "cam" "" { }; vmImages = { }; };
    orchestrator.vmImages = { };
  };
}
"#;

fn is_converged(status: &Value) -> bool {
    (&status["state"], &status["counts"]["converged"]) == (&"converged".into(), &5.into())
}

/// Returns how often what was started: nothing may be started twice.
fn counted(daemons: &Daemons) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for (name, _) in starts(daemons) {
        *counted.entry(name).or_default() += 1;
    }
    counted
}

/// F9: the store is deleted while everything runs. Nobody starts with an empty one; a master that begins anew, and is killed
/// on the way, hears everybody who was enrolled, gets everything published again, stops and starts nothing, and goes on.
#[test]
fn a_store_that_is_deleted_costs_no_instance() {
    if !has_nix() {
        return;
    }
    let mut daemons = Daemons::start(&["w1", "w2"], "{sandbox: {}}", &[("flake.nix", FLAKE.as_bytes())]);
    let before = until(&daemons, "there", is_converged);
    let (started, was) = (starts(&daemons), places(&before));
    let all: BTreeMap<String, usize> =
        [("cam", 1), ("one", 1), ("web", 3)].map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(counted(&daemons), all, "{started:?}");
    let acts = |daemons: &Daemons| -> Vec<(String, String)> {
        let is_act = |ev: &str| ["started", "stopped", "removed", "fenced", "exited"].contains(&ev);
        daemons.happened().into_iter().filter(|(ev, _)| is_act(ev)).collect()
    };
    let acted = acts(&daemons);

    for file in ["master.db", "master.db-wal", "master.db-shm"] {
        fs::remove_file(daemons.lab.path(&format!("m/fleet/{file}"))).ok();
    }
    daemons.kill("m");
    daemons.try_to_lead().exits(4).says("--rebuild");
    daemons.lead_again(&["--rebuild"]);
    // It dies before it has heard everybody, or after: the next one goes on where it was.
    daemons.kill("m");
    daemons.lead_again(&[]);
    let after = until(&daemons, "there again", |status| {
        is_converged(status) && status["generation"].as_u64() > before["generation"].as_u64()
    });
    assert_eq!(places(&after), was);
    assert_eq!((starts(&daemons), acts(&daemons)), (started.clone(), acted), "nothing is started or stopped");
    assert!(started.iter().all(|(_, pid)| is_alive(*pid)), "{started:?}");
    assert_eq!(daemons.lab.read("twice"), "");
    assert_eq!(after["commit"], before["commit"]);

    // It is a fleet as before: the next commit arrives, and only what it changes is touched.
    let text = daemons.lab.read("repo/flake.nix");
    daemons.lab.write("repo/flake.nix", text.replace("replicas = 3", "replicas = 2"));
    let last = daemons.converged(&daemons.commit("fewer"));
    assert_eq!(last["counts"]["converged"], 4, "{last}");
    assert_eq!(counted(&daemons), all);
    assert_eq!(started.iter().filter(|(_, pid)| is_alive(*pid)).count(), 4);
}
