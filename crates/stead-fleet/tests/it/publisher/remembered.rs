//! What Nix is asked, and how often: evaluations that are remembered, those that need a build, caches that are signed
//! before they are copied to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use stead_fleet::publisher::{Ending, Published};

use super::nix::{SET, VMS, flake, has_nix, nix_yaml, world};
use super::web::serve;
use super::world::{TestMaster, World};

/// Puts a program between the publisher and Nix that notes how it is called, and says which version it is.
fn count_nix(world: &World) -> String {
    let place = world.directory.path().display();
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then cat '{place}/version'; exit; fi\necho \"$*\" >>'{place}/calls'\nexec nix \"$@\"\n"
    );
    fs::write(world.path("counted-nix"), script).unwrap();
    fs::set_permissions(world.path("counted-nix"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(world.path("version"), "nix (Nix) 2.8.0\n").unwrap();
    format!("  binary: {place}/counted-nix\n")
}

/// Returns how often Nix was asked to do something.
fn calls(world: &World, what: &str) -> usize {
    let calls = fs::read_to_string(world.path("calls")).unwrap_or_default();
    calls.lines().filter(|line| line.contains(what)).count()
}

fn error(published: &Published) -> String {
    let failures = published.report.groups.iter().filter_map(|group| group.failure.as_ref());
    failures.map(|failure| format!("{}: {}", failure.stage, failure.error)).collect()
}

/// Section 5: what was evaluated at a commit is not evaluated again, by whichever publisher of this place; another Nix
/// evaluates it again, and so does another commit.
#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_is_remembered_by_commit_attribute_and_version() {
    if !has_nix() {
        return;
    }
    let (world, _) = world();
    let more = nix_yaml(&world, &count_nix(&world));
    let master = TestMaster::of(&world);
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("first");
    // Where the cache should be is a file: everything works but for the copy.
    fs::write(world.path("cache"), "in the way").unwrap();
    let published = world.once(&master, &more).await;
    assert!(master.active("default").is_none() && error(&published).contains("cached"), "{published:?}");
    assert_eq!((evaluated(&world), calls(&world, " build ")), ([1, 1], 1));

    // Another try, by another process as it were: everything is done again but what was evaluated.
    let published = world.once(&master, &more).await;
    assert!(error(&published).contains("cached"), "{published:?}");
    assert_eq!((evaluated(&world), calls(&world, " build ")), ([1, 1], 2));
    assert_eq!(calls(&world, "#orchestrator.groups"), 1, "that there are no groups is remembered, too");

    // Another Nix may see it in another way.
    fs::write(world.path("version"), "nix (Nix) 2.9.1\n").unwrap();
    fs::remove_file(world.path("cache")).unwrap();
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{published:?}");
    assert_eq!(evaluated(&world), [2, 2]);
    world.write("README", "hello");
    world.commit("second");
    assert_eq!(world.once(&master, &more).await.ending, Ending::Published);
    assert_eq!(evaluated(&world), [3, 3]);
}

/// Returns how often the VMs and the shape of their images were evaluated.
fn evaluated(world: &World) -> [usize; 2] {
    let calls = fs::read_to_string(world.path("calls")).unwrap_or_default();
    ["#orchestrator.vms", "#orchestrator.vmImages"].map(|attribute| {
        calls.lines().filter(|line| line.contains(" eval ") && line.ends_with(attribute)).count()
    })
}

/// Section 2: an evaluation that needs a build fails unless `import_from_derivation` allows it.
#[tokio::test(flavor = "multi_thread")]
async fn imports_from_derivations_are_allowed_by_their_key_alone() {
    if !has_nix() {
        return;
    }
    let (world, more) = world();
    let master = TestMaster::of(&world);
    let generated = "    generated = derivation { name = \"count.nix\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; args = [ \"-c\" \"echo 3 > $out\" ]; };\n";
    flake(&world, generated, &format!("    orchestrator.vms.web = vm web (import generated);\n{SET}"));
    world.commit("first");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Failed, "{published:?}");
    let told = error(&published);
    assert!(told.starts_with("evaluated") && told.contains("import-from-derivation"), "{told}");
    assert!(master.active("default").is_none());
    let allowed = nix_yaml(&world, "  import_from_derivation: true\n");
    let published = world.once(&master, &allowed).await;
    assert_eq!(published.ending, Ending::Published, "{published:?}");
    assert_eq!(master.active("default").unwrap().specs[0].replicas, 3);
}

/// Section 5: a cache that is no directory here gets what is signed already, by `nix store sign`; it is read back over HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_to_a_cache_elsewhere_is_signed_before() {
    if !has_nix() {
        return;
    }
    let (world, _) = world();
    fs::create_dir(world.path("www")).unwrap();
    let (port, asked) = serve(world.path("www"));
    let more = nix_yaml(&world, &count_nix(&world));
    let here = format!("file://{}/cache", world.directory.path().display());
    let more = more.replace(&here, &format!("http://127.0.0.1:{port}/cache"));
    let master = TestMaster::of(&world);
    flake(&world, "", &format!("{VMS}{SET}"));
    world.commit("first");
    let published = world.once(&master, &more).await;
    assert_eq!(published.ending, Ending::Published, "{published:?}");
    assert_eq!(calls(&world, " store sign "), 1);
    let signing = fs::read_to_string(world.path("calls")).unwrap();
    let at = |what: &str| signing.lines().position(|line| line.contains(what)).unwrap();
    assert!(at(" store sign ") < at(" copy "), "{signing}");
    let narinfos: Vec<String> = fs::read_dir(world.path("www/cache"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "narinfo"))
        .map(|entry| fs::read_to_string(entry.path()).unwrap())
        .collect();
    assert_eq!(narinfos.len(), 2);
    assert!(narinfos.iter().all(|text| text.contains("Sig: lab-1:")), "{narinfos:?}");
    let asked = asked.lock().unwrap();
    assert!(
        asked.iter().any(|head| head.starts_with("GET /cache/nar/")),
        "the bits are read back: {asked:?}"
    );
}
