//! Sites as fleets.

use stead_model::site::SiteFile;

use super::*;
use crate::fleet::canon::vm_hash;

fn file(kind: FileKind, stem: &str, text: &str) -> SiteFile {
    SiteFile { kind, stem: stem.to_owned(), name: kind.path_of(stem), content: Ok(text.as_bytes().to_vec()) }
}

fn site(manifests: &[(&str, &str)], web_packages: &str) -> Site {
    let mut files = vec![
        file(FileKind::Preset, "small", "cores: 2\nmemory: 512\ndisk: 4\n"),
        file(FileKind::Posture, "dev", "{}"),
        file(FileKind::Secrets, "secrets", "{}"),
        file(
            FileKind::Spec,
            "web",
            &format!("schema_version: 1\nplatform: {{packages: [{web_packages}]}}\n"),
        ),
        file(FileKind::Spec, "db", "schema_version: 1\nplatform: {packages: [sqlite3]}\n"),
    ];
    for (name, nodes) in manifests {
        let text = format!("schema_version: 2\nname: {name}\nnodes:\n{nodes}");
        files.push(file(FileKind::Manifest, name, &text));
    }
    Site::read(files)
}

fn run(site: &Site, fleet: &str) -> Evaluated {
    let source = Source { name: "fleet.yaml".into(), text: fleet.into() };
    let mut diagnostics = Diagnostics::default();
    let fleet = FleetFile::read(&source, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    evaluate(&Repository { site, fleet: &fleet, source: Some(&source), image_sizes: &BTreeMap::new() })
}

fn told(found: &Evaluated) -> Vec<String> {
    found.diagnostics.iter().map(|p| format!("{} {} {}", p.code, p.place, p.message)).collect()
}

const NODES: &str = "  - {name: web, type: vm, preset: small, spec: web, count: 3}\n  - {name: db, type: vm, preset: small, spec: db}\n";

/// Case 27: nodes are VMs, and a changed spec changes exactly those that use it.
#[test]
fn nodes_are_vms_and_specs_are_theirs_alone() {
    let fleet = "api_version: v1\nvms: {web: {selector: {disk: ssd}}}\ndefaults: {stopSeconds: 5}\n";
    let before = run(&site(&[("m", NODES)], "nginx"), fleet);
    assert_eq!(told(&before), Vec::<String>::new());
    let [db, web] = &before.vms[..] else { panic!("{:?}", before.vms) };
    assert_eq!((db.id.as_str(), web.replicas, web.stop_seconds, web.selector.len()), ("db", 3, 5, 1));
    assert_eq!(web.resources, Resources { cpu_milli: 2000, mem_mib: 512, disk_mib: 4096 });
    let Some(Artifact::Blob { sha256, size, .. }) = &web.runtime.config else { panic!("no config") };
    let text = String::from_utf8(before.blobs[sha256].clone()).unwrap();
    assert_eq!(text.len() as u64, *size);
    assert!(text.contains("nginx") && !text.contains("hostname") && !text.contains("\"node\""), "{text}");
    let after = run(&site(&[("m", NODES)], "nginx, curl"), fleet);
    assert_eq!(vm_hash(&after.vms[0]), vm_hash(db));
    assert_ne!(vm_hash(&after.vms[1]), vm_hash(web));
}

/// Case 27: what only `stead create` does is refused with file and line.
#[test]
fn what_only_create_does_is_refused() {
    let nodes = "  - {name: a, type: vm, preset: small, peers: [b], vmid: 100}\n  - {name: b, type: vm, preset: small, parent: a}\n  - {name: c, type: vm}\n  - {name: d, type: ct, preset: small}\n";
    let found = run(&site(&[("m", nodes)], ""), "api_version: v1\nvms: {x: {}, d: {driver: qemu}}\n");
    assert_eq!(
        told(&found),
        [
            "fleet/unknown-node fleet.yaml:2:10 no manifest has a node `x`",
            "fleet/unsupported-field manifests/m.yaml:4:48 a fleet has no use for `peers` of node `a`",
            "fleet/unsupported-field manifests/m.yaml:4:58 a fleet has no use for `vmid` of node `a`",
            "fleet/unsupported-field manifests/m.yaml:5:48 a fleet has no use for `parent` of node `b`",
            "fleet/missing-field manifests/m.yaml:6:12 nothing says how large `c` is",
            "fleet/conflict manifests/m.yaml:7:21 the driver `qemu` makes no `ct`",
        ]
    );
    assert!(found.diagnostics.iter().any(|problem| problem.help.contains("stead create")));
}

/// Section 3: a name taken twice names both files; globs choose; images are blobs.
#[test]
fn names_globs_and_images() {
    let node = "  - {name: a, type: vm, preset: small, image: debian}\n";
    let both = site(&[("m", node), ("n", node)], "");
    let found = run(&both, "api_version: v1\n");
    assert_eq!(told(&found), ["fleet/duplicate-id manifests/n.yaml:4:12 the node `a` is in two manifests"]);
    assert_eq!(found.diagnostics.0[0].related[0].0.to_string(), "manifests/m.yaml:4:12");
    let hash = "ab".repeat(32);
    let fleet = format!(
        "api_version: v1\nmanifests: [manifests/m*]\ndefaults: {{driver: qemu}}\nimages:\n  debian: {{path: d.raw, sha256: {hash}}}\n  firmware: {{url: 'https://x/fw', sha256: {hash}}}\n"
    );
    let found = run(&both, &fleet);
    assert_eq!((told(&found), found.vms.len()), (vec![], 1));
    assert!(found.vms[0].runtime.firmware.is_some() && found.vms[0].runtime.disks.len() == 1);
    let found = run(&both, "api_version: v1\nmanifests: [manifests/m.yaml]\ndefaults: {driver: qemu}\n");
    assert_eq!(
        told(&found),
        ["fleet/unknown-image manifests/m.yaml:4:12 fleet.yaml has no image `firmware`"]
    );
}

#[test]
fn globs_do_not_cross_folders() {
    assert!(matches("manifests/*.yaml", "manifests/a.yaml") && matches("*/a.yaml", "manifests/a.yaml"));
    assert!(matches("manifests/a.yaml", "manifests/a.yaml") && matches("m*/*l", "manifests/a.yaml"));
    assert!(!matches("*.yaml", "manifests/a.yaml") && !matches("manifests/*.yml", "manifests/a.yaml"));
    assert!(!matches("manifests/b*", "manifests/a.yaml"));
}
