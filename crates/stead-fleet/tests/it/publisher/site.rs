//! The site evaluator, from a commit to a publication.

use stead_fleet::publisher::Ending;
use stead_model::fleet::state::Outcome;

use super::world::{Daemon, TestMaster, World, once};

/// Case 27, 2: nodes become VMs; a commit that changes nothing is a generation with the same hash; a changed spec changes
/// exactly who uses it; publishing again does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn commits_of_a_site_are_published() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    let first = world.once(&master, "").await;
    assert_eq!(first.ending, Ending::Published, "{:?}", first.report);
    let one = master.active("default").unwrap();
    assert_eq!((one.number, one.specs.len(), one.specs[1].replicas), (1, 2, 2));
    assert!(master.active("fleet").is_none(), "there is no fleet.yaml");
    let blobs = std::fs::read_dir(world.path("blobs/sha256")).unwrap().count();
    assert_eq!(blobs, 2, "a configuration for each spec");
    let settings = world.settings("");
    let metrics = std::sync::Arc::clone(&settings.metrics);
    let again = once(settings, &master).await;
    assert_eq!(again.ending, Ending::NothingNew);
    let figures = metrics.to_text();
    assert!(figures.contains("stead_fleet_head_generation 1\n"), "after a restart: {figures}");

    world.write("README", "hello\n");
    world.commit("readme");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let two = master.active("default").unwrap();
    assert_eq!((two.number, two.specs_hash), (2, one.specs_hash));

    world.write("specs/web.yaml", "schema_version: 1\nplatform: {packages: [nginx, curl]}\n");
    world.commit("curl");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let three = master.active("default").unwrap();
    assert_eq!(three.specs[0], one.specs[0], "db is as it was");
    assert_ne!(three.specs[1], one.specs[1]);
}

/// Case 27, 22: what is wrong is named with file and line, exit code 3, nothing is published, and the next good commit recovers.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_fleet_cannot_do_is_refused_with_its_place() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.manifest(
        "  - {name: web, type: vm, preset: small}\n  - {name: db, type: vm, preset: small, parent: web}\n",
    );
    let commit = world.commit("parent");
    let published = world.once(&master, "").await;
    assert_eq!((published.ending, published.ending.exit_code()), (Ending::Invalid, 3));
    let [row] = &published.report.groups[..] else { panic!("{:?}", published.report) };
    let failure = row.failure.as_ref().unwrap();
    assert_eq!((row.stage.as_str(), failure.stage.as_str(), &row.commit), ("failed", "evaluated", &commit));
    assert!(failure.error.starts_with("manifests/m.yaml:5:"), "{}", failure.error);
    assert!(failure.error.contains("fleet/unsupported-field"), "{}", failure.error);
    assert!(failure.error.contains("`stead create` does it"), "{}", failure.error);
    assert_eq!(failure.vm.as_deref(), Some("db"));
    assert!(master.active("default").is_none());
    world.manifest("  - {name: web, type: vm, preset: small}\n");
    world.commit("good");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    assert_eq!(master.active("default").unwrap().number, 2);
}

/// Section 2: `fleet.yaml` is the group `fleet`, published first; gone again it has all defaults; broken it names line and column.
#[tokio::test(flavor = "multi_thread")]
async fn fleet_yaml_is_published_first() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.write("fleet.yaml", "api_version: v1\npolicy: {preempt: true}\ndefaults: {stopSeconds: 7}\n");
    world.commit("first");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let calls = master.calls();
    let publishes: Vec<&str> = calls.iter().map(|call| call.split(' ').nth(1).unwrap()).collect();
    assert_eq!(publishes[1..], ["fleet", "default"], "{calls:?}");
    assert!(master.active("fleet").unwrap().policy.unwrap().policy.preempt);
    assert_eq!(master.active("default").unwrap().specs[0].stop_seconds, 7);

    world.write("fleet.yaml", "api_version: v1\npolicy: {preemt: true}\n");
    world.commit("typo");
    let broken = world.once(&master, "").await;
    assert_eq!(broken.ending, Ending::Invalid);
    let error = &broken.report.groups[0].failure.as_ref().unwrap().error;
    assert!(error.starts_with("fleet.yaml:2:10"), "{error}");

    world.git(&["rm", "-q", "-f", "fleet.yaml"]);
    world.commit("gone");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    assert!(!master.active("fleet").unwrap().policy.unwrap().policy.preempt);
}

/// Section 2: manifests are where `fleet.yaml` says, and a glob without any is told with its place.
#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_where_globs_say() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let node = "  - {name: far, type: vm, preset: small}\n";
    world.write("edge/e.yaml", &format!("schema_version: 2\nname: e\nnodes:\n{node}"));
    world.write("fleet.yaml", "api_version: v1\nmanifests: ['manifests/*.yaml', 'edge/*.yaml']\n");
    world.commit("edge");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let ids = |specs: &[std::sync::Arc<stead_model::fleet::VmSpec>]| {
        specs.iter().map(|spec| spec.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&master.active("default").unwrap().specs), ["db", "far", "web"]);
    world.write("fleet.yaml", "api_version: v1\nmanifests: ['manifests/*.yaml', 'egde/*.yaml']\n");
    world.commit("slip");
    let slip = world.once(&master, "").await;
    assert_eq!(slip.ending, Ending::Invalid, "{:?}", slip.report);
    let failures: Vec<&String> =
        slip.report.groups.iter().filter_map(|group| Some(&group.failure.as_ref()?.error)).collect();
    assert!(failures.iter().any(|error| error.starts_with("fleet.yaml:2:")), "{failures:?}");
}

/// F26: an empty list is held, and that is exit code 4.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_site_is_held() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    world.once(&master, "").await;
    world.git(&["rm", "-q", "manifests/m.yaml"]);
    world.commit("nothing");
    let held = world.once(&master, "").await;
    assert_eq!((held.ending, held.ending.exit_code()), (Ending::Refused(Outcome::Held), 4));
    assert_eq!(master.active("default").unwrap().number, 1);
}

/// Case 27: images by path are checked and put; a wrong hash is refused with its line.
#[tokio::test(flavor = "multi_thread")]
async fn images_are_put_by_their_hash() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.manifest("  - {name: web, type: vm, preset: small, image: debian}\n");
    world.write("images/disk.raw", "bits of a disk");
    let hash = stead_model::plan::Digest::of(b"bits of a disk");
    let fleet = |hash: &str| {
        format!(
            "api_version: v1\ndefaults: {{driver: qemu}}\nimages:\n  debian: {{path: images/disk.raw, sha256: {hash}}}\n  firmware: {{path: images/disk.raw, sha256: {hash}}}\n"
        )
    };
    world.write("fleet.yaml", &fleet(&"ab".repeat(32)));
    world.commit("wrong");
    let wrong = world.once(&master, "").await;
    assert_eq!(wrong.ending, Ending::Invalid);
    let row = wrong.report.groups.iter().find(|row| row.group.as_str() == "default").unwrap();
    let failure = row.failure.as_ref().unwrap();
    assert_eq!(failure.stage, "built");
    assert!(failure.error.starts_with("fleet.yaml:4:") && failure.error.contains("SHA-256"), "{failure:?}");
    world.write("fleet.yaml", &fleet(&hash.to_string()));
    world.commit("right");
    assert_eq!(world.once(&master, "").await.ending, Ending::Published);
    let stored = std::fs::read(world.path("blobs/sha256").join(hash.to_string())).unwrap();
    assert_eq!(stored, b"bits of a disk");
}

/// The daemon sees commits by itself, and takes numbers when the master comes back, in the order of acceptance.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_follows_the_branch() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    let first = world.commit("first");
    let daemon = Daemon::start(world.settings(""), &master);
    master.wait("the first commit", |master| master.active("default").is_some_and(|on| on.number == 1)).await;
    world.write("README", "x");
    let second = world.commit("second");
    master
        .wait("the second commit", |master| master.active("default").is_some_and(|on| on.number == 2))
        .await;
    master
        .wait("its report", |master| {
            master.report().is_some_and(|told| {
                let row = told.groups.first();
                row.is_some_and(|row| {
                    row.commit == second && row.stage == "submitted" && row.contains == [first.clone()]
                })
            })
        })
        .await;
    daemon.stop().await;
}
