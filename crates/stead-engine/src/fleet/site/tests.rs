//! Sites as fleets.

use stead_model::site::SiteFile;
use stead_model::site::manifest::Origin;

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
    let elsewhere = ["edge/e.yaml", "specs/web.yaml", "fleet.yaml"].into_iter();
    let elsewhere = elsewhere.filter(|path| is_manifest(&fleet, path)).map(|path| {
        let text = "schema_version: 2\nname: e\nnodes:\n  - {name: far, type: vm, preset: small}\n";
        (path.to_owned(), Site::read_manifest(path, text.into(), Origin::Elsewhere))
    });
    evaluate(&Repository {
        site,
        elsewhere: &elsewhere.collect(),
        fleet: &fleet,
        source: Some(&source),
        image_sizes: &BTreeMap::new(),
    })
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
    assert!(!text.contains("\"digest\""), "{text}");
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
    assert_eq!(found.failed.as_ref().map(NodeName::as_str), Some("a"));
}

/// Section 3: a manifest that cannot be read is told as that, and not as nodes that nobody has.
#[test]
fn a_slip_in_a_manifest_is_told_where_it_is() {
    let nodes = "  - {name: web, type: vm, preset: small, count: [2}\n";
    let found = run(&site(&[("m", nodes)], ""), "api_version: v1\nvms: {web: {}}\n");
    let told = told(&found);
    assert!(matches!(&told[..], [one] if one.starts_with("node/bad-yaml manifests/m.yaml:4:")), "{told:?}");
}

/// Section 3: dependencies, hosts and one address for several instances are refused as well.
#[test]
fn hosts_order_and_addresses_of_several_are_refused() {
    let nodes = "  - {name: a, type: vm, preset: small}\n  - {name: b, type: vm, preset: small, depends_on: [a]}\n  - {name: c, type: vm, preset: small, host: h1}\n  - {name: d, type: vm, preset: small, count: 2, ip: 192.0.2.7/24}\n  - {name: e, type: vm, preset: small, ip: 192.0.2.8/24}\n";
    let found = run(&site(&[("m", nodes)], ""), "api_version: v1\n");
    let told: Vec<String> =
        told(&found).into_iter().filter(|told| told.starts_with("fleet/unsupported-field")).collect();
    assert_eq!(
        told,
        [
            "fleet/unsupported-field manifests/m.yaml:5:53 a fleet has no use for `depends_on` of node `b`",
            "fleet/unsupported-field manifests/m.yaml:6:46 a fleet has no use for `host` of node `c`",
            "fleet/unsupported-field manifests/m.yaml:7:12 a fleet has no use for `ip` of node `d`",
        ]
    );
    assert!(!found.vms.iter().any(|vm| ["b", "c", "d"].contains(&vm.id.as_str())));
}

/// Section 6: what no VM may be, no node may be made into: told with file and line.
#[test]
fn a_node_keeps_the_rules_of_vms() {
    let nodes = "  - {name: many, type: vm, preset: small, count: 10001}\n  - {name: most, type: vm, preset: small, count: 10000}\n  - {name: only, type: vm, preset: small, count: 2}\n";
    let found = run(&site(&[("m", nodes)], ""), "api_version: v1\nvms: {only: {singleton: true}}\n");
    let told = told(&found);
    assert!(told[0].starts_with("fleet/out-of-range manifests/m.yaml:4:12 `count` of `many`"), "{told:?}");
    assert!(told[1].starts_with("fleet/conflict manifests/m.yaml:6:12 `singleton` of `only`"), "{told:?}");
    assert_eq!((told.len(), found.vms.len()), (2, 1));
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

/// Section 2: every file that a glob matches is a manifest, but for those that are something else; a glob that matches none is
/// told with its place.
#[test]
fn manifests_are_where_globs_say() {
    let site = site(&[("m", NODES)], "");
    let ids = |found: &Evaluated| found.vms.iter().map(|vm| vm.id.to_string()).collect::<Vec<_>>();
    let both = run(&site, "api_version: v1\nmanifests: ['manifests/*.yaml', 'edge/*.yaml']\n");
    assert_eq!((told(&both), ids(&both)), (vec![], vec!["db".into(), "far".into(), "web".into()]));
    let any = run(&site, "api_version: v1\nmanifests: ['*/*.yaml', '*.yaml']\n");
    assert_eq!(told(&any), ["fleet/unknown-manifest fleet.yaml:2:25 no manifest is called `*.yaml`"]);
    assert_eq!(ids(&any).len(), 3);
    let none = run(&site, "api_version: v1\nmanifests:\n  - manifests/*.yaml\n  - egde/*.yaml\n");
    assert_eq!(told(&none), ["fleet/unknown-manifest fleet.yaml:4:5 no manifest is called `egde/*.yaml`"]);
    assert_eq!(ids(&run(&site, "api_version: v1\n")).len(), 2);
}

#[test]
fn globs_do_not_cross_folders() {
    assert!(matches("manifests/*.yaml", "manifests/a.yaml") && matches("*/a.yaml", "manifests/a.yaml"));
    assert!(matches("manifests/a.yaml", "manifests/a.yaml") && matches("m*/*l", "manifests/a.yaml"));
    assert!(!matches("*.yaml", "manifests/a.yaml") && !matches("manifests/*.yml", "manifests/a.yaml"));
    assert!(!matches("manifests/b*", "manifests/a.yaml"));
}
