//! What nodes boot comes to the node that makes them.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

use stead_model::plan::Digest;

use super::by_job::assert_unconnected;
use super::*;

/// Returns what a directory holds, by name.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Section 6: a level hands images on to its own children. What one has under that name is its own, and stays.
#[test]
fn a_hosting_node_is_brought_the_images_that_its_nodes_boot() {
    let tree = Tree::new(
        "- {name: quay, type: vm, hosting: {driver: qemu, binary: no-such-qemu}}\n\
         - {name: crane, type: vm, image: tiny, parent: quay}\n\
         - {name: hook, type: vm, image: own, parent: quay}\n\
         - {name: buoy, type: vm, image: nowhere, parent: quay}\n",
    );
    let here = tree.lab.path("state/images");
    fs::create_dir_all(&here).unwrap();
    let image: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(here.join("tiny.img"), &image).unwrap();
    fs::write(here.join("own.img"), "of the level above").unwrap();
    tree.run("create", &["--only", "quay"]).exits(0);
    let there = tree.root(&["quay"]).join("var/lib/stead/images");
    fs::create_dir_all(&there).unwrap();
    fs::write(there.join("own.qcow2"), "its own").unwrap();
    let names = || names_in(&there);
    // Nothing runs them there.
    assert_ne!(tree.run("create", &[]).code, 0);
    assert_eq!(names(), ["own.qcow2", "tiny.img"]);
    assert!(fs::read(there.join("tiny.img")).unwrap() == image, "it arrived whole");
    let first = fs::metadata(there.join("tiny.img")).unwrap().ino();
    assert_ne!(tree.run("create", &[]).code, 0);
    assert_eq!(fs::metadata(there.join("tiny.img")).unwrap().ino(), first, "it is not brought again");
    assert_eq!(names(), ["own.qcow2", "tiny.img"]);
}

/// Section 6: a template that is a directory goes down over SSH, too, as an archive that is the same each time.
#[test]
fn a_hosting_node_is_brought_a_directory_as_an_archive() {
    let tree = Tree::new(
        "- {name: quay, type: vm, hosting: {driver: oci, runtime: /no-such-runtime}}\n\
         - {name: crane, type: ct, template: rootfs, parent: quay}\n",
    );
    let rootfs = tree.lab.path("state/images/rootfs");
    fs::create_dir_all(rootfs.join("etc")).unwrap();
    fs::write(rootfs.join("etc/hostname"), "crane").unwrap();
    let packed = || {
        // Nothing runs it there.
        assert_ne!(tree.run("create", &[]).code, 0);
        let there = tree.root(&["quay"]).join("var/lib/stead/images");
        assert_eq!(names_in(&there), ["rootfs.tar"]);
        fs::read(there.join("rootfs.tar")).unwrap()
    };
    let first = packed();
    assert!(first.windows(14).any(|window| window == b"./etc/hostname"));
    fs::remove_file(tree.root(&["quay"]).join("var/lib/stead/images/rootfs.tar")).unwrap();
    assert!(packed() == first, "one tree is one archive");
    assert_eq!(names_in(&tree.lab.path("state/artifacts/sha256")), [""; 0]);
}

/// A tree that pulls, whose hosting node would make virtual machines if anybody ran them there.
fn pulled_tree() -> Tree {
    let nodes = "  - {name: quay, type: vm, spec: base, hosting: {driver: qemu, binary: no-such-qemu}}\n  - {name: crane, type: vm, image: tiny, parent: quay}\n  - {name: hook, type: vm, image: own, parent: quay}\nexecution: {default_mode: pull}\nsettings: {delegation: job, verify_ssh: false}\n";
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    tree.run("create", &["--only", "quay"]).exits(0);
    tree
}

/// Returns how often the server of the first level has handed out a part of a file.
fn parts_handed_out(tree: &Tree) -> usize {
    let files = fs::read_dir(tree.lab.path("state/server")).unwrap().flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|suffix| suffix == "log"));
    let log: String = logs.map(|path| fs::read_to_string(path).unwrap()).collect();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["route"] == "artifact" && line["status"] == 206).count()
}

/// Section 6, `delegation: job`: images go down without SSH, from the server that the hosting node pulls from, and only as
/// long as they are fetched. Who was interrupted goes on where that was, and what is wrong is fetched anew.
#[test]
fn a_hosting_node_that_pulls_fetches_the_images_that_its_nodes_boot() {
    let tree = pulled_tree();
    let (here, there) = (tree.lab.path("state/images"), tree.root(&["quay"]).join("var/lib/stead/images"));
    fs::create_dir_all(&here).unwrap();
    let image: Vec<u8> = (0..2_400_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(here.join("tiny.img"), &image).unwrap();
    fs::write(here.join("own.img"), "of the level above").unwrap();
    fs::create_dir_all(&there).unwrap();
    fs::write(there.join("own.qcow2"), "its own").unwrap();
    let part = there.join(format!(".stead-tiny.img.{}.part", Digest::of(&image)));
    let mut handed_out = 0;
    for (before, parts) in [
        (None, 3),
        // Begun twice before: once well, once with something else.
        (Some(image[..6 << 20].to_vec()), 1),
        (Some(vec![7; 6 << 20]), 1 + 3),
    ] {
        fs::remove_file(there.join("tiny.img")).ok();
        fs::write(there.join(".stead-old.img.0.part"), "of nobody").unwrap();
        if let Some(before) = before {
            fs::write(&part, before).unwrap();
        }
        // Nothing runs them there.
        assert_ne!(tree.run("create", &[]).code, 0);
        assert_eq!(names_in(&there), ["own.qcow2", "tiny.img"]);
        assert!(fs::read(there.join("tiny.img")).unwrap() == image, "it arrived whole");
        let now = parts_handed_out(&tree);
        assert_eq!(now - handed_out, parts);
        handed_out = now;
        assert_eq!(names_in(&tree.lab.path("state/artifacts/sha256")), [""; 0], "it is offered no longer");
    }
    assert_ne!(tree.run("create", &[]).code, 0);
    assert_eq!(parts_handed_out(&tree), handed_out, "it is not fetched again");
    assert_unconnected(&tree, 1);
}

/// What a hosting node fetches is what it was told, in its directory, or nothing.
#[test]
fn a_hosting_node_keeps_no_image_that_is_not_the_one_that_is_meant() {
    let tree = pulled_tree();
    let (root, offers) = (tree.root(&["quay"]), tree.lab.path("state/artifacts/sha256"));
    let there = root.join("var/lib/stead/images");
    let meant = Digest::of(b"meant");
    fs::create_dir_all(&offers).unwrap();
    fs::write(offers.join(meant.to_string()), "other").unwrap();
    let fetch = |file: &str, size: u64, sha256: &Digest| -> Ended {
        let order = json!({"directory": there, "files": [{"file": file, "size": size, "sha256": sha256}]});
        let mut command = tree.lab.stead(["errand", "fetch"]);
        command.env("STEAD_ROOT", &root);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(order.to_string().as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    };
    for name in ["../tiny.img", "/tmp/tiny.img", ".tiny.img", ""] {
        fetch(name, 5, &meant).exits(3).says("is not the name of a file of images");
    }
    fetch("tiny.img", 5, &meant).exits(1).says("tiny.img did not arrive whole");
    fetch("tiny.img", 1 << 62, &meant).exits(1).says("bytes more");
    // More than was told is not taken, less is not enough.
    fetch("tiny.img", 3, &meant).exits(1).says("did not arrive whole");
    fetch("tiny.img", 9, &meant).exits(1).says("the file has 5 bytes");
    fetch("tiny.img", 5, &Digest::of(b"nowhere")).exits(1).says("E200");
    assert!(
        !root.join("var/lib/stead/images/tiny.img").exists() && !root.join("var/lib/stead/tiny.img").exists()
    );
    fs::write(offers.join(meant.to_string()), "meant").unwrap();
    fetch("tiny.img", 5, &meant).exits(0);
    assert_eq!(names_in(&there), ["tiny.img"]);
}
