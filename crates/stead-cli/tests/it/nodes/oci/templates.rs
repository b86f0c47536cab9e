//! Templates of containers in containers: what a level has, the next one is given.

use super::*;
use crate::oci::account::make_tree;

/// Section 6: a template that is a directory goes down as an archive, from the server that the hosting node pulls from. What
/// is made of it there has its files and modes, and none of its devices.
#[test]
fn a_template_that_is_a_directory_goes_down() {
    if is_skipped("runc") {
        return;
    }
    let rest = "execution: {default_mode: pull}\nsettings: {delegation: job}\n";
    let harbour = Harbour::new("runc", &["name: host, spec: base, hosting: {runtime: runc}"], rest);
    let manifest = harbour.lab.read("site-config/manifests/m.yaml");
    let leaf = "  - {name: leaf, type: ct, template: tree, parent: host, execution: {mode: push}}\n";
    write(&harbour.lab, "manifests/m.yaml", &format!("{manifest}{leaf}"));
    let tree = harbour.lab.path("state/images/tree");
    fs::create_dir_all(&tree).unwrap();
    make_tree(&tree);
    fs::write(tree.join("etc/mark"), "of the level above").unwrap();
    assert_eq!(statuses(&harbour.make(&[])), all("completed", &["host", "leaf"]));
    assert_eq!(harbour.on("leaf", &["cat", "/etc/mark"]), "of the level above");
    assert_eq!(harbour.on("leaf", &["sudo", "-n", "id", "-u"]), "0", "programs keep their modes");
    assert_eq!(harbour.on("host", &["sudo", "-n", "ls", "-A", "/var/lib/stead/images"]), "tree.tar");
    let packed = harbour.on("host", &["sudo", "-n", "tar", "-tf", "/var/lib/stead/images/tree.tar"]);
    assert!(packed.contains("./etc/mark") && packed.contains("./dev/"), "{packed}");
    assert!(tree.join("dev/null").exists() && !packed.contains("dev/null"), "{packed}");
    let offers = fs::read_dir(harbour.lab.path("state/artifacts/sha256")).unwrap();
    assert_eq!(offers.count(), 0, "nothing is left of the archive here");
    // What is there is not packed again.
    assert!(harbour.make(&[])["nodes"].as_array().unwrap().iter().all(|row| row["changed"] == false));
    harbour.clear();
}
