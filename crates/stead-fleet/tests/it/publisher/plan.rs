//! What a commit would do.

use std::collections::BTreeMap;

use serde_json::json;
use stead_engine::fleet::plan::Plan;
use stead_fleet::publisher::{PlanError, PlanRequest, Planned, Settings, plan};
use stead_model::GroupName;
use stead_model::WorkerName;
use stead_model::fleet::CommitId;
use stead_model::fleet::state::{Allocatable, Snapshot, SnapshotGroup, SnapshotPlacement, WorkerView};

use super::world::{TestMaster, World};

fn empty() -> Snapshot {
    let workers = ["w1", "w2"].map(|name| {
        let allocatable = Allocatable { cpu_milli: 8000, mem_mib: 8192, disk_mib: None };
        WorkerView::new(WorkerName::parse(name).unwrap(), allocatable)
    });
    Snapshot { workers: workers.into(), ..Snapshot::default() }
}

async fn ask(settings: &Settings, what: Planned, snapshot: &Snapshot) -> Result<Plan, PlanError> {
    let request = PlanRequest { what, commit: None, group: None, build: false, snapshot: snapshot.clone() };
    plan(settings, request).await
}

fn revision(text: &str) -> Planned {
    Planned::Revision(text.to_owned())
}

/// Case 21: the plan of a branch that is not merged, then of what it would drain; what is wrong is exit code 3 or 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_planned_before_it_is_merged() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let first = world.commit("first");
    let settings = world.settings("");
    let new = ask(&settings, revision("main"), &empty()).await.unwrap();
    assert_eq!((new.rev.clone(), new.add.len(), new.unchanged, new.exact), (first.clone(), 3, 0, true));

    // What was published is what was planned.
    world.once(&master, "").await;
    let active = master.active("default").unwrap();
    assert_eq!((active.specs_hash, active.intent_hash), (new.specs_hash, new.intent_hash));
    let hashes: BTreeMap<_, _> = new.vms.iter().map(|vm| (&vm.id, vm.vm_hash)).collect();
    let placements = new.assign.iter().map(|(instance, worker)| SnapshotPlacement {
        instance: instance.clone(),
        worker: worker.clone(),
        vm_hash: hashes.get(&instance.vm).copied(),
        volumes: vec![],
    });
    let group = SnapshotGroup {
        group: GroupName::default_group(),
        generation: 1,
        commit: first,
        specs: active.specs.iter().map(|spec| spec.as_ref().clone()).collect(),
    };
    let running = Snapshot { placements: placements.collect(), groups: vec![group], ..empty() };
    let same = ask(&settings, revision("HEAD"), &running).await.unwrap();
    assert_eq!((same.unchanged, same.groups.len(), same.replace.len()), (3, 0, 0));

    let group = Some(GroupName::parse("defualt").unwrap());
    let (what, snapshot) = (revision("HEAD"), running.clone());
    let request = PlanRequest { what, commit: None, group, build: false, snapshot };
    let unknown = plan(&settings, request).await.unwrap_err();
    assert_eq!(unknown.exit_code(), 2);
    assert_eq!(unknown.to_string(), "there is no group `defualt`; did you mean `default`?");

    world.git(&["checkout", "-q", "-b", "topic"]);
    world.write("specs/web.yaml", "schema_version: 1\nplatform: {packages: [nginx, curl]}\n");
    world.commit("curl");
    let changed = ask(&settings, revision("topic"), &running).await.unwrap();
    let replaced: Vec<String> = changed.replace.iter().map(|change| change.instance.to_string()).collect();
    assert_eq!((replaced, changed.unchanged), (vec!["web/0".to_owned(), "web/1".to_owned()], 1));
    assert_eq!(changed.replace[0].fields, ["runtime.config"]);

    // Case 10: what `fleet.yaml` would drain moves.
    let drained = same.assign.values().next().unwrap();
    world.git(&["checkout", "-q", "main"]);
    world.write("fleet.yaml", &format!("api_version: v1\nworkers: {{{drained}: {{drain: true}}}}\n"));
    world.commit("drain");
    let moved = ask(&settings, revision("main"), &running).await.unwrap();
    let leaving = same.assign.values().filter(|worker| *worker == drained).count();
    assert_eq!((moved.moves.len(), moved.moves[0].from.clone()), (leaving, drained.clone()));
    assert!(moved.assign.values().all(|worker| worker != drained));

    world.manifest("  - {name: web, type: vm, preset: small, parent: web}\n");
    world.commit("broken");
    let broken = ask(&settings, revision("main"), &running).await.unwrap_err();
    assert_eq!(broken.exit_code(), 3, "{broken}");
    let PlanError::Invalid { problems, .. } = &broken else { panic!("{broken}") };
    let told: Vec<(&str, &str)> =
        problems.iter().map(|problem| (problem.code, problem.help.as_str())).collect();
    assert_eq!(told, [("fleet/unsupported-field", "`stead create` does it; leave it out here")]);
    let unknown = ask(&settings, revision("nowhere"), &running).await.unwrap_err();
    assert_eq!(unknown.exit_code(), 1);
    assert!(unknown.to_string().contains("`nowhere`"), "{unknown}");
}

/// Section 14: a list of specs instead of a revision, with its commit and its group.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_specs_is_planned() {
    let world = World::new();
    let settings = world.settings("");
    let text = json!([{
        "id": "web", "resources": {"cpuMilli": 500, "memMiB": 128}, "runtime": {"driver": "sandbox"}, "replicas": 2,
    }])
    .to_string();
    let what = Planned::Specs { name: "specs.json".to_owned(), text };
    let commit = CommitId::parse("60a0e5f7ea71e87670f92cb0d5674464daba62cf").unwrap();
    let group = Some(GroupName::parse("edge").unwrap());
    let request = PlanRequest { what, commit: Some(commit.clone()), group, build: false, snapshot: empty() };
    let found = plan(&settings, request).await.unwrap();
    assert_eq!((found.rev, found.add.len(), found.groups[0].as_str()), (commit, 2, "edge"));
    let spec = |group: &str| json!({"id": "web", "group": group, "resources": {"cpuMilli": 500, "memMiB": 128}, "runtime": {"driver": "sandbox"}});
    for (specs, group, says) in [
        (json!([spec("edge"), spec("other")]), None, "fleet/duplicate-id"),
        (json!([spec("edge")]), Some("default"), "fleet/wrong-group"),
        (json!([spec("fleet")]), None, "fleet/bad-group"),
    ] {
        let what = Planned::Specs { name: "specs.json".to_owned(), text: specs.to_string() };
        let group = group.map(|group| GroupName::parse(group).unwrap());
        let request = PlanRequest { what, commit: None, group, build: false, snapshot: empty() };
        let error = plan(&settings, request).await.unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        let PlanError::Invalid { problems, .. } = &error else { panic!("{error}") };
        assert_eq!(problems.0.iter().map(|problem| problem.code).collect::<Vec<_>>(), [says], "{error}");
    }
    let bad = Planned::Specs { name: "specs.json".to_owned(), text: "[{\"id\": \"web\"}]".to_owned() };
    let error = ask(&settings, bad, &empty()).await.unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(
        error.to_string().contains("specs.json:1:") && error.to_string().contains("resources"),
        "{error}"
    );
}
