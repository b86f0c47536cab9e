//! Manifests against themselves, their site and their host.

use stead_model::site::manifest::{Mode, Origin, Pattern};
use stead_model::site::{Entry, FileKind, Manifest, Site, SiteFile};

use super::*;

mod delegating;
mod properties;

pub(super) fn file(kind: FileKind, stem: &str, text: &str) -> SiteFile {
    SiteFile { kind, stem: stem.to_owned(), name: kind.path_of(stem), content: Ok(text.as_bytes().to_vec()) }
}

pub(super) fn manifest(nodes: &str) -> Entry<Manifest> {
    let text = format!("schema_version: 2\nname: m\n{nodes}");
    Site::read_manifest("m.yaml", text.into_bytes(), Origin::Given)
}

fn check(text: &str) -> Checked {
    check_manifest(&Site::default(), &manifest(text), ForHost::default())
}

/// Code, path and message of every problem.
fn told(text: &str) -> Vec<String> {
    check(text)
        .diagnostics
        .iter()
        .map(|problem| format!("{} {} {}", problem.code, problem.path, problem.message))
        .collect()
}

/// Secrets with a token `h`.
fn secrets() -> SiteFile {
    file(FileKind::Secrets, "secrets", "api_tokens: {h: r@p!i=x}\n")
}

fn names(forest: &Forest, indices: &[usize]) -> Vec<String> {
    indices.iter().map(|index| forest.nodes[*index].name.to_string()).collect()
}

/// Case 2: every member is named.
#[test]
fn cycles_name_all_their_members() {
    let two = "nodes: [{name: a, type: vm, parent: b}, {name: b, type: vm, parent: a}, {name: c, type: vm, parent: a}]\n";
    assert_eq!(told(two), ["node/cycle nodes[0].parent nodes are made in each other: a -> b -> a"]);
    let own = "nodes: [{name: a, type: vm, parent: a}]\n";
    assert_eq!(told(own), ["node/cycle nodes[0].parent nodes are made in each other: a -> a"]);
    let waits = "nodes: [{name: a, type: vm, depends_on: [c]}, {name: b, type: vm, depends_on: [a]}, {name: c, type: vm, depends_on: [b]}, {name: d, type: vm, depends_on: [d]}]\n";
    assert_eq!(
        told(waits),
        [
            "node/cycle nodes[0].depends_on nodes wait for each other: a -> b -> c -> a",
            "node/cycle nodes[3].depends_on[0] nodes wait for each other: d -> d",
        ]
    );
}

/// Case 2: all three at once.
#[test]
fn duplicate_and_unknown_names_are_told_together() {
    let found = told(
        "nodes: [{name: web, type: vm}, {name: web, type: vm}, {name: b, type: vm, parent: wbe}, {name: c, type: vm, peers: [nope], depends_on: [gone]}]\n",
    );
    assert_eq!(
        found,
        [
            "node/duplicate-name nodes[1].name the node `web` is there twice",
            "node/unknown-parent nodes[2].parent `b` is to be made in `wbe`, which does not exist",
            "node/unknown-peer nodes[3].peers[0] `c` names `nope`, which does not exist",
            "node/unknown-dependency nodes[3].depends_on[0] `c` names `gone`, which does not exist",
        ]
    );
    let checked = check("nodes: [{name: web, type: vm}, {name: b, type: vm, parent: wbe}]\n");
    assert_eq!(checked.diagnostics.0[0].candidates, ["web"]);
}

#[test]
fn count_stands_for_several_nodes() {
    let checked = check(
        "nodes: [{name: web, type: vm, count: 3, peers: [web]}, {name: db, type: vm, depends_on: [web], peers: [web-1]}]\n",
    );
    assert_eq!(checked.diagnostics.to_string(), "");
    let forest = checked.forest.unwrap();
    assert_eq!(names(&forest, forest.order()), ["web-1", "web-2", "web-3", "db"]);
    assert_eq!(forest.nodes[0].peers, [1, 2, 3]);
    assert_eq!(forest.nodes[3].depends_on, [0, 1, 2]);
    assert_eq!(forest.named("web"), Some(0..3));
    let meant = |word: &str| {
        let choice = Choice { depth: None, only: vec![word.to_owned()] };
        select(&forest, &choice, Verb::Make, &|_| false).unwrap().selected
    };
    assert_eq!(meant("web"), [true, true, true, false], "all of them");
    assert_eq!(meant("web-2"), [false, true, false, false]);
    assert_eq!(checked.pattern, Some(Pattern::Mesh));
    for (text, code) in [
        ("[{name: a, type: vm, count: 2}, {name: b, type: vm, parent: a}]", "node/unknown-parent"),
        ("[{name: a, type: vm, count: 2}, {name: a-2, type: vm}]", "node/duplicate-name"),
        ("[{name: a, type: vm}, {name: a, type: vm, count: 2}]", "node/duplicate-name"),
        ("[{name: a, type: vm, peers: [a]}]", "node/conflict"),
        ("[{name: a, type: vm, count: 2, vmid: 100}]", "node/conflict"),
        ("[{name: a, type: vm, count: 2, depends_on: [a]}]", "node/cycle"),
    ] {
        let found = check(&format!("nodes: {text}\n")).diagnostics;
        assert_eq!(found.iter().map(|problem| problem.code).collect::<Vec<_>>(), [code], "{text}");
    }
    assert!(check("nodes: [{name: a, type: vm, count: 1, peers: [a]}]\n").diagnostics.0.is_empty());
    let long = format!("nodes: [{{name: {}, type: vm, count: 2}}]\n", "x".repeat(62));
    assert_eq!(check(&long).diagnostics.0[0].code, "node/bad-name");
    let huge = "nodes: [{name: a, type: vm, count: 60000}, {name: b, type: vm, count: 60000}]\n";
    assert_eq!(check(huge).diagnostics.0[0].code, "node/out-of-range");
    let mesh = "nodes: [{name: a, type: vm, count: 9000, peers: [a]}]\n";
    assert_eq!(check(mesh).diagnostics.0[0].code, "node/out-of-range");
}

#[test]
fn depends_on_is_between_nodes_of_one_parent() {
    let found = told("nodes: [{name: a, type: vm}, {name: b, type: vm, parent: a, depends_on: [a]}]\n");
    assert_eq!(found, ["node/conflict nodes[1].depends_on[0] `b` and `a` are not made in the same node"]);
}

#[test]
fn an_id_is_used_once_per_host() {
    let text = "nodes: [{name: a, type: vm, vmid: 100}, {name: b, type: vm, vmid: 100}, {name: c, type: vm, vmid: 100, host: local}, {name: d, type: vm, vmid: 100, parent: a}]\n";
    assert_eq!(told(text), ["node/conflict nodes[1].vmid `a` and `b` have the same vmid 100"]);
}

const FLAT: &str = "{name: a, type: vm}, {name: b, type: vm}";
const STAR: &str = "{name: a, type: vm}, {name: b, type: vm, parent: a}";
const DEEP: &str = "{name: a, type: vm}, {name: b, type: vm, parent: a}, {name: c, type: vm, parent: b}";
const SIBLINGS: &str =
    "{name: a, type: vm}, {name: b, type: vm, parent: a, peers: [c]}, {name: c, type: vm, parent: a}";
const SPREAD: &str = "{name: a, type: vm, host: x}, {name: b, type: vm, host: y}";
const CHAIN: &str = "{name: a, type: vm, peers: [b]}, {name: b, type: vm, peers: [c]}, {name: c, type: vm}";
const LINKED: &str = "{name: a, type: vm}, {name: b, type: vm}, {name: c, type: vm, parent: a, peers: [d]}, {name: d, type: vm, parent: b}";
const CROSSED: &str = "{name: a, type: vm, peers: [b]}, {name: b, type: vm, parent: a}";

/// Case 6: every pattern against every graph.
#[test]
fn each_pattern_holds_for_its_graphs_only() {
    let graphs = [
        (FLAT, "flat", Some("flat")),
        (STAR, "flat tiered hub-spoke", Some("tiered")),
        (DEEP, "tiered hub-spoke", Some("tiered")),
        (SIBLINGS, "tiered", Some("tiered")),
        (SPREAD, "flat hub-spoke", Some("flat")),
        (CHAIN, "mesh federated", Some("mesh")),
        (LINKED, "federated", Some("federated")),
        (CROSSED, "", None),
    ];
    for (nodes, fits, inferred) in graphs {
        let entry = manifest(&format!("nodes: [{nodes}]\n"));
        let checked = check_manifest(&Site::default(), &entry, ForHost::default());
        assert_eq!(checked.pattern.map(Pattern::word), inferred, "{nodes}");
        assert_eq!(checked.is_inferred, inferred.is_some());
        let mismatches =
            checked.diagnostics.iter().filter(|problem| problem.code == "node/pattern-mismatch").count();
        assert_eq!(mismatches, usize::from(inferred.is_none()), "{nodes}");
        for (word, pattern) in Pattern::WORDS {
            let entry = manifest(&format!("pattern: {word}\nnodes: [{nodes}]\n"));
            let checked = check_manifest(&Site::default(), &entry, ForHost::default());
            let mismatch = checked.diagnostics.iter().find(|problem| problem.code == "node/pattern-mismatch");
            assert_eq!(checked.pattern, Some(pattern));
            assert_eq!(mismatch.is_none(), fits.split(' ').any(|fit| fit == word), "{word}: {nodes}");
            if let Some(mismatch) = mismatch {
                assert_eq!(mismatch.candidates.first().map(String::as_str), inferred, "{word}: {nodes}");
                assert!(mismatch.message.contains(word), "{}", mismatch.message);
            }
        }
    }
}

#[test]
fn a_part_of_a_manifest_keeps_the_pattern_of_the_whole() {
    let text = format!("pattern: tiered\ncontext: {{run: r, path: [q], host: h}}\nnodes: [{FLAT}]\n");
    assert!(told(&text).is_empty());
}

/// Case 3: four at once, each with what could have been meant.
#[test]
fn unknown_files_and_keys_are_told_together() {
    let spec = "schema_version: 1\naccess:\n  posture: nope\n  users: [{name: a, ssh_keys: [ghost]}]\n";
    let site = Site::read(vec![
        file(FileKind::Spec, "base", spec),
        file(FileKind::Posture, "dev", "{}"),
        file(FileKind::Preset, "vm-small", "{cores: 1, memory: 512, disk: 1}"),
        file(
            FileKind::Secrets,
            "secrets",
            "ssh_keys: {ann: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB}",
        ),
    ]);
    let entry = manifest(
        "nodes:\n  - {name: a, type: vm, spec: bsae, preset: vm-smal}\n  - {name: b, type: vm, spec: base}\n  - {name: c, type: vm, spec: base, host: nowhere}\n",
    );
    let found: Vec<String> = check_manifest(&site, &entry, ForHost::default())
        .diagnostics
        .iter()
        .map(|problem| {
            format!("{} {} {} {:?}", problem.place, problem.path, problem.message, problem.candidates)
        })
        .collect();
    assert_eq!(
        found,
        [
            "m.yaml:4:31 nodes[0].spec there is no specs/bsae.yaml [\"base\"]",
            "m.yaml:4:45 nodes[0].preset there is no presets/vm-smal.yaml [\"vm-small\"]",
            "m.yaml:6:43 nodes[2].host there is no hosts/nowhere.yaml [\"local\"]",
            "specs/base.yaml:3:12 access.posture there is no postures/nope.yaml [\"dev\"]",
            "specs/base.yaml:4:32 access.users[0].ssh_keys[0] there is no `ghost` in `ssh_keys` of secrets.yaml [\"ann\"]",
        ]
    );
    assert_eq!(check_site(&site).0.len(), 2);
}

#[test]
fn only_what_the_manifest_refers_to_matters_to_it() {
    let site = Site::read(vec![
        file(FileKind::Spec, "broken", "colour: red"),
        file(FileKind::Spec, "good", "schema_version: 1\nidentity: {hostname: other}"),
        file(FileKind::Posture, "dev", "{}"),
        file(
            FileKind::Manifest,
            "m",
            "schema_version: 2\nname: m\nnodes: [{name: a, type: vm, spec: broken}]\n",
        ),
    ]);
    let good =
        check_manifest(&site, &manifest("nodes: [{name: a, type: vm, spec: good}]\n"), ForHost::default());
    assert!(!good.diagnostics.has_errors());
    assert_eq!(good.diagnostics.0[0].path, "identity.hostname", "the name is the node's");
    assert!(good.nodes[0].spec_digest.is_some());
    let bad =
        check_manifest(&site, &manifest("nodes: [{name: a, type: vm, spec: broken}]\n"), ForHost::default());
    assert_eq!(bad.diagnostics.0.len(), 2);
    assert_eq!(check_site(&site).0.len(), 2, "each problem once, and the name that no node has is not used");
}

/// Case 8: instances before hosts before the built-in one.
#[test]
fn hosts_are_looked_for_in_two_folders() {
    let instance = "datastore: local-zfs\nhost: both\napi_token: t\nip: 10.0.0.5\n";
    let site = Site::read(vec![
        file(FileKind::Host, "only", "driver: qemu\n"),
        file(FileKind::Host, "both", "driver: oci\ndomain: lab\nparallel: 3\n"),
        file(FileKind::Instance, "both", instance),
    ]);
    let found = find_host(&site, "ann@both").unwrap();
    assert_eq!((found.origin, found.user.as_deref()), (HostOrigin::Instance, Some("ann")));
    assert_eq!(
        (found.host.driver(), found.host.domain.as_deref()),
        (stead_model::site::host::DriverKind::Proxmox, Some("lab"))
    );
    assert_eq!((found.host.node.as_deref(), found.host.parallel()), (Some("both"), 3));
    assert_eq!(find_host(&site, "only").unwrap().origin, HostOrigin::Host);
    let local = find_host(&site, "local").unwrap();
    assert_eq!((local.origin, local.host.parallel()), (HostOrigin::BuiltIn, 64));
    let Err(FindHostError::Unknown(error)) = find_host(&site, "nope") else {
        panic!("there is no such host")
    };
    assert_eq!(
        error.message,
        "there is no host `nope`: neither nodes/nope.yaml nor hosts/nope.yaml; there are both, local, only"
    );
    assert_eq!(error.candidates, ["both", "local", "only"]);
    assert!(find_host(&site, "@both").is_err());
    let problems = check_site(&site);
    let codes: Vec<&str> = problems.iter().map(|problem| problem.code).collect();
    assert_eq!(
        codes,
        ["node/unapplied-key", "node/unknown-fk"],
        "the token is not in secrets.yaml: {problems}"
    );
}

#[test]
fn a_driver_makes_only_what_it_can() {
    let check = |driver: &str, nodes: &str| -> Vec<&'static str> {
        let datastore = if driver == "proxmox" { "ip: 10.0.0.5\ndatastore: d\n" } else { "" };
        let site =
            Site::read(vec![file(FileKind::Host, "h", &format!("driver: {driver}\n{datastore}")), secrets()]);
        let host = find_host(&site, "h").unwrap();
        let wanted = ForHost { host: Some(&host), mode: None };
        let checked = check_manifest(&site, &manifest(&format!("nodes: [{nodes}]\n")), wanted);
        checked.diagnostics.iter().map(|problem| problem.code).collect()
    };
    assert_eq!(check("sandbox", "{name: a, type: ct}, {name: b, type: vm, parent: a}"), [""; 0]);
    assert_eq!(check("none", "{name: a, type: vm}"), ["node/not-hostable"]);
    assert_eq!(check("oci", "{name: a, type: vm}"), ["node/type-unsupported"]);
    assert_eq!(
        check("qemu", "{name: a, type: ct}, {name: b, type: vm}"),
        ["node/type-unsupported", "node/missing-image"]
    );
    assert_eq!(
        check(
            "qemu",
            "{name: a, type: vm, image: i, hosting: {driver: oci}}, {name: b, type: ct, parent: a, template: host}"
        ),
        [""; 0]
    );
    assert_eq!(
        check("proxmox", "{name: a, type: ct, template: t}, {name: b, type: vm, image: i, parent: a}"),
        ["node/not-hostable"]
    );
    assert_eq!(
        check("sandbox", "{name: a, type: vm, hosting: {driver: none}}, {name: b, type: vm, parent: a}"),
        ["node/not-hostable", "node/not-hostable"]
    );
}

/// Section 6: a hosting node is one with children, or a `pve`; without a spec it has no agent either.
#[test]
fn a_hosting_node_without_an_agent_cannot_be_told_by_a_job() {
    let site = Site::read(vec![file(FileKind::Spec, "base", "schema_version: 1\n"), secrets()]);
    let found = |nodes: &str, mode| -> Vec<String> {
        let text = format!("settings: {{delegation: job}}\nnodes: [{nodes}]\n");
        let checked = check_manifest(&site, &manifest(&text), ForHost { mode: Some(mode), host: None });
        let conflicts = checked.diagnostics.iter().filter(|problem| problem.code == "node/conflict");
        conflicts.map(|problem| problem.path.clone()).collect()
    };
    let parent = "{name: a, type: vm, spec: base}, {name: b, type: vm, parent: a}";
    for (nodes, pushed, pulled) in [
        (parent, "nodes[0].execution", ""),
        (STAR, "nodes[0].execution", "nodes[0].spec"),
        ("{name: a, type: pve, spec: base}", "nodes[0].execution", ""),
        ("{name: a, type: pve}", "nodes[0].execution", "nodes[0].spec"),
        ("{name: a, type: vm}", "", ""),
    ] {
        assert_eq!(found(nodes, Mode::Push).join(" "), pushed, "{nodes}");
        assert_eq!(found(nodes, Mode::Pull).join(" "), pulled, "{nodes}");
        assert_eq!(found(nodes, Mode::Hybrid).join(" "), pulled, "{nodes}");
    }
}

/// Case 11: parents first, file order kept; depth, ancestors, descendants.
#[test]
fn order_and_selection_follow_the_forest() {
    let forest = check("nodes: [{name: r1, type: vm}, {name: c1, type: vm, parent: r1}, {name: r2, type: vm}, {name: c2, type: vm, parent: r2}, {name: g2, type: vm, parent: c2}]\n")
        .forest
        .unwrap();
    assert_eq!(names(&forest, forest.order()), ["r1", "r2", "c1", "c2", "g2"]);
    let pick = |choice: &Choice, verb, exists: &dyn Fn(usize) -> bool| -> (Vec<String>, Vec<String>) {
        let selection = select(&forest, choice, verb, exists).unwrap();
        let order: Vec<usize> =
            forest.order().iter().copied().filter(|index| selection.selected[*index]).collect();
        let added: Vec<usize> = selection.added.iter().map(|(index, _)| *index).collect();
        (names(&forest, &order), names(&forest, &added))
    };
    let only = |words: &str| Choice { depth: None, only: vec![words.to_owned()] };
    let shallow = Choice { depth: Some(1), only: Vec::new() };
    let absent: &dyn Fn(usize) -> bool = &|_| false;
    assert_eq!(pick(&shallow, Verb::Make, absent).0, ["r1", "r2"]);
    let (picked, added) = pick(&only("g2"), Verb::Make, absent);
    assert_eq!((picked.join(" "), added.join(" ")), ("r2 c2 g2".to_owned(), "r2 c2".to_owned()));
    assert_eq!(pick(&only("g2"), Verb::Make, &|_| true).0, ["g2"], "what is there is not made again");
    let (picked, added) = pick(&only("r2"), Verb::Remove, absent);
    assert_eq!((picked.join(" "), added.join(" ")), ("r2 c2 g2".to_owned(), "c2 g2".to_owned()));
    assert_eq!(pick(&only("c*, r1"), Verb::Make, absent).0, ["r1", "r2", "c1", "c2"]);
    let error = select(&forest, &only("c9"), Verb::Make, absent).unwrap_err();
    assert_eq!(error.to_string(), "`--only c9` names no node of the manifest; did you mean `c1`?");
    assert!(matches!(select(&forest, &only("[a"), Verb::Make, absent), Err(SelectError::BadGlob { .. })));
    for verb in [Verb::Make, Verb::Remove] {
        let cut = select(&forest, &Choice { depth: Some(1), ..only("c1,g2") }, verb, absent).unwrap_err();
        assert!(matches!(cut, SelectError::Deeper { depth: 1, .. }), "{cut}");
    }
}

#[test]
fn what_others_wait_for_comes_first_among_equals() {
    let forest =
        check("nodes: [{name: a, type: vm, depends_on: [c]}, {name: b, type: vm}, {name: c, type: vm}]\n")
            .forest
            .unwrap();
    assert_eq!(names(&forest, forest.order()), ["b", "c", "a"]);
}

/// Figures of section 15, with room for a debug build on a busy machine: nothing is worse than linear.
#[test]
fn deep_and_wide_forests_are_checked_without_recursion() {
    let mut deep = String::from("nodes:\n- {name: n0, type: vm}\n");
    for i in 1..2000 {
        deep.push_str(&format!("- {{name: n{i}, type: vm, parent: n{}}}\n", i - 1));
    }
    let checked = check(&deep);
    assert_eq!(checked.forest.unwrap().nodes[1999].depth, 1999);
    let mut wide = String::from("nodes:\n- {name: hub, type: vm}\n");
    for i in 1..10_000 {
        wide.push_str(&format!("- {{name: n{i}, type: vm, parent: hub}}\n"));
    }
    assert_eq!(check(&wide).pattern, Some(Pattern::Tiered));
    let mut ring = String::from("nodes:\n- {name: n0, type: vm, parent: n1999}\n");
    for i in 1..2000 {
        ring.push_str(&format!("- {{name: n{i}, type: vm, parent: n{}}}\n", i - 1));
    }
    assert_eq!(check(&ring).diagnostics.0.len(), 1);
    let unknown: String = (0..3000).map(|i| format!("- {{name: n{i}, type: vm, parent: x}}\n")).collect();
    assert_eq!(check(&format!("nodes:\n{unknown}")).diagnostics.0.len(), 3000);
}

/// What is refused has no place among the nodes: nothing can be made in it.
#[test]
fn entries_with_count_are_no_parents_whatever_became_of_them() {
    let long = "l".repeat(62);
    for (nodes, path) in [
        (
            "{name: a-1, type: vm}, {name: x, type: vm, parent: a}, {name: a, type: vm, count: 1}".to_owned(),
            "nodes[1].parent",
        ),
        (
            format!("{{name: x, type: vm, parent: {long}}}, {{name: {long}, type: vm, count: 2}}"),
            "nodes[0].parent",
        ),
    ] {
        let checked = check(&format!("nodes: [{nodes}]\n"));
        let problem = checked.diagnostics.iter().find(|problem| problem.path == path).unwrap();
        assert_eq!(problem.code, "node/unknown-parent");
    }
}

/// Nodes that are made in each other may also wait for each other: both are told.
#[test]
fn nodes_without_a_level_may_wait_for_each_other() {
    let found = told(
        "nodes: [{name: a, type: vm, parent: b}, {name: b, type: vm, parent: a}, {name: c, type: vm, parent: a, depends_on: [e, d]}, {name: d, type: vm, parent: a, depends_on: [c]}, {name: e, type: vm, parent: a}]\n",
    );
    assert_eq!(
        found,
        [
            "node/cycle nodes[0].parent nodes are made in each other: a -> b -> a",
            "node/cycle nodes[2].depends_on nodes wait for each other: c -> d -> c",
        ]
    );
}

/// Every node of an entry is checked, and told once.
#[test]
fn each_node_of_several_is_checked() {
    let site = Site::read(vec![
        file(FileKind::Host, "h", "driver: proxmox\nip: 10.0.0.5\ndatastore: d\n"),
        secrets(),
    ]);
    let host = find_host(&site, "h").unwrap();
    let nodes = "nodes: [{name: a, type: ct, template: t, count: 3}, {name: b, type: vm, image: i, parent: a-2}, {name: c, type: vm, image: i, parent: a-3}]\n";
    let checked = check_manifest(&site, &manifest(nodes), ForHost { host: Some(&host), mode: None });
    let codes: Vec<&str> = checked.diagnostics.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["node/not-hostable"]);
    let jobs = format!("settings: {{delegation: job}}\n{nodes}");
    let checked = check(&jobs);
    assert_eq!(checked.diagnostics.0.len(), 1, "{}", checked.diagnostics);
}

/// `hosting` is a host: its names are looked up, and what it needs is asked for.
#[test]
fn hosting_is_checked_as_a_host_is() {
    let site = Site::read(vec![file(FileKind::Host, "h", "driver: qemu\n"), secrets()]);
    let host = find_host(&site, "h").unwrap();
    let found = |hosting: &str| -> Vec<String> {
        let nodes = format!(
            "nodes: [{{name: a, type: vm, image: i, hosting: {hosting}}}, {{name: b, type: vm, parent: a}}]\n"
        );
        let checked = check_manifest(&site, &manifest(&nodes), ForHost { host: Some(&host), mode: None });
        checked.diagnostics.iter().map(|problem| format!("{} {}", problem.code, problem.path)).collect()
    };
    assert_eq!(found("{kernel: /k}"), [""; 0], "the kind that made it, with what is said here");
    assert_eq!(
        found("{driver: proxmox, host: no, parent_node: no, api_token: no, access: {authorized_keys: [no]}}"),
        [
            "node/missing-field nodes[0].hosting",
            "node/not-hostable nodes[0].hosting",
            "node/unknown-fk nodes[0].hosting.host",
            "node/unknown-fk nodes[0].hosting.parent_node",
            "node/unknown-fk nodes[0].hosting.api_token",
            "node/unapplied-key nodes[0].hosting.access.authorized_keys",
            "node/unknown-fk nodes[0].hosting.access.authorized_keys[0]",
            "node/missing-image nodes[1].image",
        ]
    );
    let endpoint = "{api_endpoint: 'https://pve:8006', datastore: d, api_token: h}";
    let nodes = format!(
        "nodes: [{{name: a, type: vm, image: i, hosting: {endpoint}}}, {{name: b, type: ct, template: t, parent: a}}]\n"
    );
    let checked = check_manifest(&site, &manifest(&nodes), ForHost { host: Some(&host), mode: None });
    let codes: Vec<&str> = checked.diagnostics.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["node/not-hostable"], "Proxmox makes containers, qemu does not; but not from inside");
}

/// Tokens of an API never go down, so a node that Proxmox made says what else it makes its children with.
#[test]
fn no_node_makes_its_children_by_proxmox() {
    let site = Site::read(vec![
        file(FileKind::Host, "h", "driver: proxmox\nip: 10.0.0.5\ndatastore: d\n"),
        secrets(),
    ]);
    let host = find_host(&site, "h").unwrap();
    let told = |hosting: &str| {
        let nodes = format!(
            "nodes: [{{name: a, type: pve, image: i{hosting}}}, {{name: b, type: vm, image: i, parent: a}}]\n"
        );
        let checked = check_manifest(&site, &manifest(&nodes), ForHost { host: Some(&host), mode: None });
        let told = checked.diagnostics.iter();
        told.map(|problem| format!("{} {} {}", problem.code, problem.path, problem.help)).collect::<Vec<_>>()
    };
    let help = "say what it makes them with, such as `hosting: {driver: qemu}`";
    assert_eq!(told(""), [format!("node/not-hostable nodes[0].hosting {help}")]);
    assert_eq!(told(", hosting: {parallel: 2}"), [format!("node/not-hostable nodes[0].hosting {help}")]);
    assert_eq!(told(", hosting: {driver: qemu}"), [""; 0]);
}

/// An instance takes from its host what it does not say itself, field by field.
#[test]
fn instances_inherit_field_by_field() {
    let base = "datastore: tank\nbecome: sudo\ntimeouts: {create: 7, ssh: 8}\naccess: {ssh_port: 2222, host_user: ann, authorized_keys: [k]}\n";
    let instance =
        "host: base\nbecome: none\ntimeouts: {ssh: 120}\naccess: {ssh_port: 22, authorized_keys: []}\n";
    let site = Site::read(vec![
        file(FileKind::Host, "base", base),
        file(FileKind::Instance, "p1", instance),
        file(FileKind::Instance, "bare", "{}"),
        file(FileKind::Host, "h", "driver: proxmox\ndatastore: d\n"),
    ]);
    let host = find_host(&site, "p1").unwrap().host;
    assert_eq!(host.datastore.as_deref(), Some("tank"));
    assert_eq!((host.timeouts().create, host.timeouts().ssh, host.timeouts().config), (7, 120, 600));
    assert_eq!((host.access.ssh_port(), host.access.host_user.as_deref()), (22, Some("ann")));
    assert_eq!(host.access.authorized_keys.as_deref(), Some(&[][..]));
    assert_eq!(host.become_user, Some(stead_model::site::host::RunAs::Login));
    assert_eq!((host.node.as_deref(), host.api_token.unwrap().value.as_str()), (Some("p1"), "p1"));
    let Err(FindHostError::Broken(problems)) = find_host(&site, "bare") else {
        panic!("it has no datastore")
    };
    assert_eq!((problems.0[0].code, problems.0[0].path.as_str()), ("node/missing-field", "datastore"));
    let other = find_host(&site, "h").unwrap().host;
    assert_eq!((other.node.as_deref(), other.api_token.unwrap().value.as_str()), (Some("h"), "h"));
    let told: Vec<String> =
        check_site(&site).iter().map(|p| format!("{} {} {}", p.code, p.place, p.path)).collect();
    assert_eq!(
        told,
        [
            "node/unapplied-key hosts/base.yaml:4:42 access.authorized_keys",
            "node/unknown-fk hosts/base.yaml:4:60 access.authorized_keys[0]",
            "node/unknown-fk hosts/h.yaml:1:1 api_token",
            "node/missing-field hosts/h.yaml:1:1 api_endpoint",
            "node/unknown-fk nodes/bare.yaml:1:1 api_token",
            "node/missing-field nodes/bare.yaml:1:1 datastore",
            "node/missing-field nodes/bare.yaml:1:1 api_endpoint",
            "node/unknown-fk nodes/p1.yaml:1:1 api_token",
            "node/missing-field nodes/p1.yaml:1:1 api_endpoint",
        ]
    );
}

/// What no instance can be used without is told at once, also where its host's file has other problems.
#[test]
fn an_instance_says_where_its_api_is_and_is_not_in_itself() {
    let told = |files: &[(FileKind, &str, &str)]| -> Vec<String> {
        let files = files.iter().map(|(kind, name, text)| file(*kind, name, text));
        let site = Site::read(files.chain([secrets()]).collect());
        let problems = check_site(&site);
        let errors = problems.iter().filter(|problem| !problem.path.starts_with("api_token"));
        errors.map(|p| format!("{} {} {}", p.code, p.place, p.path)).collect()
    };
    let (host, instance) = (FileKind::Host, FileKind::Instance);
    assert_eq!(
        told(&[(host, "h", "parallel: 0\n"), (instance, "p", "host: h\n")]),
        [
            "node/out-of-range hosts/h.yaml:1:11 parallel",
            "node/missing-field nodes/p.yaml:1:1 datastore",
            "node/missing-field nodes/p.yaml:1:1 api_endpoint",
        ]
    );
    let unread = "datastore: 7\napi_endpoint: nowhere\n";
    assert_eq!(
        told(&[(host, "h", unread), (instance, "p", "host: h\n")]),
        ["node/bad-type hosts/h.yaml:1:12 datastore", "node/bad-type hosts/h.yaml:2:15 api_endpoint",]
    );
    let base = "driver: proxmox\ndatastore: d\n";
    assert_eq!(told(&[(host, "h", base), (instance, "p", "host: h\nip: 10.0.0.5\n")]), [""; 0]);
    let within = |parent: &str| format!("ip: 10.0.0.5\ndatastore: d\nparent_node: {parent}\n");
    assert_eq!(told(&[(instance, "p", &within("p"))]), ["node/cycle nodes/p.yaml:3:14 parent_node"]);
    assert_eq!(
        told(&[(instance, "p", &within("q")), (instance, "q", &within("r")), (instance, "r", &within("q"))]),
        ["node/cycle nodes/q.yaml:3:14 parent_node", "node/cycle nodes/r.yaml:3:14 parent_node"]
    );
}

/// One id on one host, however the host is named.
#[test]
fn ids_are_unique_on_the_host_that_is_meant() {
    let site = Site::read(vec![file(FileKind::Host, "h", "driver: sandbox\n")]);
    let host = find_host(&site, "h").unwrap();
    let nodes = "nodes: [{name: a, type: vm, vmid: 100}, {name: b, type: vm, vmid: 100, host: h}]\n";
    let codes = |host| -> Vec<&str> {
        let checked = check_manifest(&site, &manifest(nodes), ForHost { host, mode: None });
        checked.diagnostics.iter().map(|problem| problem.code).collect()
    };
    assert_eq!(codes(Some(&host)), ["node/conflict"]);
    assert_eq!(codes(None), [""; 0]);
}

/// Globs of faults are read before anything is to strike.
#[test]
fn a_fault_that_could_never_strike_is_told() {
    let site = Site::read(vec![file(
        FileKind::Host,
        "h",
        "driver: sandbox\nfaults: [{node: \"[\", phase: boot}]\n",
    )]);
    let problems = check_site(&site);
    assert_eq!((problems.0[0].code, problems.0[0].path.as_str()), ("node/bad-name", "faults[0].node"));
}

/// A whole site is checked for a host as one manifest is; a hostname that is not used is told once.
#[test]
fn a_site_is_checked_for_a_host() {
    let nodes =
        |name: &str| format!("schema_version: 2\nname: {name}\nnodes: [{{name: a, type: ct, spec: s}}]\n");
    let site = Site::read(vec![
        file(FileKind::Host, "h", "driver: qemu\n"),
        file(FileKind::Posture, "dev", "{}"),
        file(FileKind::Spec, "s", "schema_version: 1\nidentity: {hostname: other}\n"),
        file(FileKind::Manifest, "m", &nodes("m")),
        file(FileKind::Manifest, "n", &nodes("n")),
    ]);
    let host = find_host(&site, "h").unwrap();
    let codes =
        |host| -> Vec<&str> { check_site_for(&site, host).iter().map(|problem| problem.code).collect() };
    assert_eq!(codes(None), ["node/conflict"]);
    assert_eq!(codes(Some(&host)), ["node/type-unsupported", "node/type-unsupported", "node/conflict"]);
}

/// Section 2: a service that a posture runs is not disabled by a spec that names it.
#[test]
fn a_posture_and_a_spec_agree_on_fail2ban() {
    let spec = |disable: &str| {
        format!(
            "schema_version: 1\naccess: {{posture: prod}}\nplatform: {{services: {{disable: [{disable}]}}}}\n"
        )
    };
    for (disable, posture, codes) in [
        ("fail2ban", "fail2ban: {enabled: true}", &["node/conflict"][..]),
        ("fail2ban", "fail2ban: {enabled: false}", &[]),
        ("rpcbind", "fail2ban: {enabled: true}", &[]),
    ] {
        let site = Site::read(vec![
            file(FileKind::Spec, "base", &spec(disable)),
            file(FileKind::Posture, "prod", posture),
        ]);
        let nodes = manifest("nodes: [{name: a, type: vm, spec: base}]\n");
        let checked = check_manifest(&site, &nodes, ForHost::default());
        let found: Vec<&str> = checked.diagnostics.iter().map(|problem| problem.code).collect();
        assert_eq!(found, codes, "{disable}, {posture}");
    }
}

/// Looking for what was meant is bounded: each look costs as much as there are files. Every problem has candidates.
#[test]
fn many_unknown_files_are_told_quickly() {
    let mut files: Vec<SiteFile> =
        (0..1000).map(|i| file(FileKind::Spec, &format!("spec-number-{i}"), "schema_version: 1\n")).collect();
    files.push(file(FileKind::Posture, "dev", "{}"));
    let site = Site::read(files);
    let nodes: String =
        (0..3000).map(|i| format!("  - {{name: n{i}, type: vm, spec: spec-numbre-{i}}}\n")).collect();
    let checked = check_manifest(&site, &manifest(&format!("nodes:\n{nodes}")), ForHost::default());
    let with =
        |count: usize| checked.diagnostics.iter().filter(|problem| problem.candidates.len() == count).count();
    assert_eq!((checked.diagnostics.0.len(), with(1), with(20)), (3000, 50, 2950));
}

/// Words that are no words select nothing, which is told.
#[test]
fn nothing_typed_selects_nothing() {
    let forest = check("nodes: [{name: a, type: vm}]\n").forest.unwrap();
    for words in ["", ",", " , "] {
        let choice = Choice { depth: None, only: vec![words.to_owned()] };
        let found = select(&forest, &choice, Verb::Make, &|_| false);
        assert!(
            matches!(found, Err(SelectError::NoMatch { candidates, .. }) if candidates == ["a"]),
            "{words:?}"
        );
    }
}
