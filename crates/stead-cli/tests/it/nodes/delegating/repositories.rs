//! Repositories at every level: each serves them to its own nodes.

use super::*;
use crate::nodes::serving::git;

const THREE: &str = "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay}\n  - {name: hook, type: vm, spec: base, parent: crane}\nexecution: {default_mode: pull}\n";
const WAYS: [&str; 2] = ["settings: {delegation: ssh}\n", "settings: {delegation: job, verify_ssh: false}\n"];

/// Clones the repository `kit` as a node would, from the server it was told, and returns a file of it.
fn cloned(tree: &Tree, path: &[&str], to: &str) -> String {
    let told = fs::read(tree.root(path).join("etc/stead/bootstrap.json")).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    let header = format!("http.extraHeader=Authorization: Bearer {}", told["token"].as_str().unwrap());
    let url = format!("{}/kit.git", told["server"].as_str().unwrap());
    let (ok, said) = git(&tree.lab, "", &["-c", &header, "clone", "-q", "-b", "_working", &url, to]);
    assert!(ok, "{path:?}: {said}");
    tree.lab.read(&format!("{to}/a.txt"))
}

/// Section 6: each level serves repositories to its own nodes, as they are at the first one.
#[test]
fn every_level_serves_the_repositories() {
    let served = SERVED.replace("bind: 127.0.0.1", "bind: 127.0.0.1, repos: {kit: ../kit}");
    for (round, way) in WAYS.into_iter().enumerate() {
        let tree = Tree::with(&format!("{THREE}{way}"), &[("site.yaml", &served)]);
        tree.lab.write("kit/a.txt", "committed\n");
        for args in [&["init", "-q", "-b", "main"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
            let (ok, said) = git(&tree.lab, "kit", args);
            assert!(ok, "{said}");
        }
        tree.run("create", &[]).exits(0);
        let paths = [&["quay"][..], &["quay", "crane"], &["quay", "crane", "hook"]];
        for text in ["committed\n", "changed\n"] {
            for path in paths {
                let to = format!("{round}-{}-{}", path.len(), text.trim());
                assert_eq!(cloned(&tree, path, &to), text, "{way}{path:?}");
            }
            tree.lab.write("kit/a.txt", "changed\n");
            tree.run("create", &[]).exits(0);
        }
        let below = tree.root(&["quay"]).join("var/lib/stead/delegated/site/.m.server/repositories");
        assert_eq!(fs::read_dir(&below).unwrap().count(), 2, "only what counts is kept");
        tree.run("destroy", &["--only", "crane"]).exits(0);
        wait_for("the end of what was handed down", || !below.exists());
    }
}
