//! `stead validate`: all problems at once, and what is known of what is right.

use serde_json::json;

use super::{manifest, problems, site, validate, write};

/// Case 13: the vector of the contract.
#[test]
fn the_vector_is_in_the_document() {
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm, spec: base}\n"))]);
    let document = validate(&lab, &["-M", "m", "-H", "local"]).exits(0).document();
    assert_eq!(document["valid"], true);
    assert_eq!(
        (&document["manifest"], &document["host"], &document["pattern"]),
        (&json!("m"), &json!("local"), &json!("flat"))
    );
    assert_eq!(
        document["nodes"],
        json!([{"name": "edge", "type": "vm", "mode": "push", "depth": 0, "parent": null, "peers": [], "spec": "base",
            "spec_digest": "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f",
            "preset": null, "hosting": false}])
    );
    assert_eq!((&document["errors"], &document["warnings"]), (&json!([]), &json!([])));
    assert!(!lab.path("state").exists(), "nothing is written");
}

/// A site that a fleet is made of is checked with its `fleet.yaml`, before anybody commits it.
#[test]
fn a_fleet_file_beside_the_site_is_checked() {
    let lab = site(&[("fleet.yaml", "api_version: v1\n")]);
    validate(&lab, &[]).exits(0);
    write(&lab, "fleet.yaml", "api_version: v1\nvmz: {}\ndefaults: {stopSeconds: soon}\n");
    let found = problems(&validate(&lab, &[]).exits(1).document());
    assert_eq!(found.len(), 2, "{found:?}");
    lab.run(["validate"]).exits(1).says("vmz").says("fleet.yaml:2:1");
}

/// Section 1: a node makes machines itself if nodes are in it, whatever its type, or if it is a Proxmox host.
#[test]
fn hosting_nodes_have_children_or_are_proxmox_hosts() {
    let nodes = "  - {name: a, type: vm}\n  - {name: b, type: ct, parent: a}\n  - {name: c, type: pve}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(nodes))]);
    let document = validate(&lab, &["-M", "m"]).exits(0).document();
    let hosting: Vec<(&str, bool)> = document["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["name"].as_str().unwrap(), node["hosting"].as_bool().unwrap()))
        .collect();
    assert_eq!(hosting, [("a", true), ("c", true), ("b", false)]);
}

/// Case 7: a site with all older names has the digests of the canonical one.
#[test]
fn older_names_and_folders_give_the_same_digests() {
    let nodes = manifest("  - {name: edge, type: vm, spec: base}\n");
    let lab = site(&[("manifests/m.yaml", &nodes)]);
    let digest = |document: serde_json::Value| document["nodes"][0]["spec_digest"].clone();
    let ours = digest(validate(&lab, &["-M", "m"]).exits(0).document());
    let root = lab.path("site-config");
    std::fs::create_dir(root.join("v2")).unwrap();
    for folder in ["specs", "presets", "postures"] {
        std::fs::rename(root.join(folder), root.join("v2").join(folder)).unwrap();
    }
    let defaults = "defaults: {domain: lab.example, packages: [ca-certificates], spec_server: '', ssh_user: root, automation_user: stead, packer_release: latest}\n";
    write(&lab, "site.yaml", defaults);
    write(
        &lab,
        "v2/postures/local.yaml",
        "ssh: {permit_root_login: prohibit-password, password_authentication: false}\nsudo: {nopasswd: true}\nauth: {method: x}\n",
    );
    std::fs::rename(&root, lab.path("older")).unwrap();
    let mut command = lab.stead(["validate", "-M", "m", "--json-output"]);
    let ended: super::Ended = command.env("HOMESTAK_SITE_CONFIG", lab.path("older")).output().unwrap().into();
    let document = ended.exits(0).document();
    assert_eq!(document["warnings"].as_array().unwrap().len(), 5, "{document}");
    assert_eq!(digest(document), ours);
}

/// Case 2, exit code of validate: cycles, and three problems at once.
#[test]
fn cycles_and_unknown_names_are_told_at_once() {
    let lab = site(&[]);
    for (nodes, message) in [
        ("  - {name: a, type: vm, parent: b}\n  - {name: b, type: vm, parent: a}\n", "a -> b -> a"),
        ("  - {name: a, type: vm, parent: a}\n", "a -> a"),
        (
            "  - {name: a, type: vm, depends_on: [b]}\n  - {name: b, type: vm, depends_on: [a]}\n",
            "a -> b -> a",
        ),
    ] {
        write(&lab, "manifests/m.yaml", &manifest(nodes));
        let document = validate(&lab, &["-M", "m"]).exits(1).document();
        assert_eq!(document["errors"][0]["code"], "node/cycle");
        assert!(document["errors"][0]["message"].as_str().unwrap().contains(message), "{document}");
    }
    write(
        &lab,
        "manifests/m.yaml",
        &manifest(
            "  - {name: a, type: vm}\n  - {name: a, type: vm}\n  - {name: b, type: vm, parent: x, peers: [y]}\n",
        ),
    );
    let document = validate(&lab, &["-M", "m"]).exits(1).document();
    assert_eq!(
        problems(&document),
        [
            "node/duplicate-name nodes[1].name",
            "node/unknown-parent nodes[2].parent",
            "node/unknown-peer nodes[2].peers[0]"
        ]
    );
}

/// Case 3: four foreign keys, each with line and candidates.
#[test]
fn four_unknown_files_and_keys_are_told_at_once() {
    let spec = "schema_version: 1\naccess:\n  posture: locl\n  users: [{name: ops, ssh_keys: [bob]}]\n";
    let nodes = "  - {name: a, type: vm, spec: bsae}\n  - {name: b, type: vm, spec: odd, preset: vm-smal}\n";
    let lab = site(&[("specs/odd.yaml", spec), ("manifests/m.yaml", &manifest(nodes))]);
    let document = validate(&lab, &["-M", "m"]).exits(1).document();
    let rows: Vec<String> = document["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            format!(
                "{} {}:{} {}",
                row["code"].as_str().unwrap(),
                row["file"].as_str().unwrap(),
                row["line"],
                row["candidates"]
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            "node/unknown-fk site-config/manifests/m.yaml:4 [\"base\"]",
            "node/unknown-fk site-config/manifests/m.yaml:5 [\"vm-small\"]",
            "node/unknown-fk site-config/specs/odd.yaml:3 [\"local\"]",
            "node/unknown-fk site-config/specs/odd.yaml:4 [\"ann@desk\"]",
        ]
    );
    let text = lab.run(["validate", "-M", "m"]).exits(1);
    insta::assert_snapshot!(format!("{}{}", text.stdout, text.stderr));
}

/// Case 4: seven problems with their paths.
#[test]
fn seven_problems_of_one_manifest_have_their_paths() {
    let text = "schema_version: 2\nname: m\nsettings: {on_error: explode}\nnodes:\n  - {name: a, type: zebra, execution: {mode: sideways}, imagee: x, vmid: 5, disk: 0, count: 0}\n";
    let lab = site(&[("manifests/m.yaml", text)]);
    let document = validate(&lab, &["-M", "m"]).exits(1).document();
    assert_eq!(
        problems(&document),
        [
            "node/bad-enum settings.on_error",
            "node/bad-enum nodes[0].type",
            "node/bad-enum nodes[0].execution.mode",
            "node/unknown-key nodes[0].imagee",
            "node/out-of-range nodes[0].vmid",
            "node/out-of-range nodes[0].disk",
            "node/out-of-range nodes[0].count",
        ]
    );
    assert_eq!(document["errors"][3]["candidates"], json!(["image"]));
    assert_eq!(document["error"]["code"], "node/invalid");
    assert_eq!(document["diagnostics"].as_array().unwrap().len(), 7);
}

/// Case 5: what is no manifest, and where there is none.
#[test]
fn what_is_no_manifest_says_why() {
    let lab = site(&[(
        "manifests/other.yaml",
        &manifest("  - {name: a, type: vm}\n").replace("name: m", "name: other"),
    )]);
    for (text, code) in [
        ("schema_version: 1\nname: m\nnodes: [{name: a, type: vm}]\n", "node/version-unsupported"),
        ("name: m\nnodes: [{name: a, type: vm}]\n", "node/missing-field"),
        ("schema_version: 99\nname: m\nnodes: [{name: a, type: vm}]\n", "node/version-unsupported"),
        ("schema_version: 2\nname: m\n", "node/missing-field"),
        ("schema_version: 2\nname: m\nnodes: []\n", "node/missing-field"),
        ("schema_version: 2\nname: m\nnodes: [{type: vm}]\n", "node/missing-field"),
        ("schema_version: 2\nname: m\nnodes: [{name: a}]\n", "node/missing-field"),
        ("[a]\n", "node/bad-type"),
    ] {
        write(&lab, "manifests/m.yaml", text);
        let document = validate(&lab, &["-M", "m"]).exits(1).document();
        assert_eq!(document["errors"][0]["code"], code, "{text}");
    }
    let broken = validate(&lab, &["--manifest-json", "{\"schema_version\": 2,"]).exits(1).document();
    assert_eq!(broken["errors"][0]["code"], "node/bad-yaml");
    let missing = validate(&lab, &["--manifest-file", "nowhere.yaml"]).exits(3).document();
    assert_eq!(missing["valid"], false);
    let unknown = validate(&lab, &["-M", "oter"]).exits(3).document();
    assert_eq!(unknown["diagnostics"][0]["candidates"], json!(["m", "other"]));
    assert_eq!(unknown["error"]["code"], "node/unknown-fk");
    lab.run(["validate", "-M", "m", "--manifest-file", "x"]).exits(2);
}

/// Case 6: the broken rule and the pattern that fits.
#[test]
fn a_mismatch_names_the_pattern_that_fits() {
    let chain = "  - {name: a, type: vm, peers: [b]}\n  - {name: b, type: vm}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(chain).replace("nodes:", "pattern: flat\nnodes:"))]);
    let document = validate(&lab, &["-M", "m"]).exits(1).document();
    assert_eq!(document["errors"][0]["message"], "flat has no peers, but a and b are");
    assert_eq!(document["errors"][0]["candidates"], json!(["mesh"]));
    write(&lab, "manifests/m.yaml", &manifest(chain));
    lab.run(["validate", "-M", "m"]).exits(0).says("m: valid, mesh (inferred), 2 nodes");
    let inferred = validate(&lab, &["-M", "m"]).exits(0).document();
    assert_eq!((&inferred["pattern"], &inferred["pattern_inferred"]), (&json!("mesh"), &json!(true)));
    let said = |pattern: &str| manifest(chain).replace("nodes:", &format!("pattern: {pattern}\nnodes:"));
    write(&lab, "manifests/m.yaml", &said("mesh"));
    let given = validate(&lab, &["-M", "m"]).exits(0).document();
    assert_eq!((&given["pattern"], &given["pattern_inferred"]), (&json!("mesh"), &json!(false)));
}

/// Case 11, as far as validate shows it: levels, ancestors, order.
#[test]
fn a_selection_adds_what_it_needs_and_says_so() {
    let nodes = "  - {name: r1, type: vm}\n  - {name: c1, type: vm, parent: r1}\n  - {name: r2, type: vm}\n  - {name: c2, type: vm, parent: r2}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(nodes))]);
    let names = |args: &[&str]| -> Vec<String> {
        let document = validate(&lab, &[&["-M", "m"], args].concat()).exits(0).document();
        document["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&[]), ["r1", "r2", "c1", "c2"]);
    assert_eq!(names(&["--depth", "1"]), ["r1", "r2"]);
    assert_eq!(names(&["--only", "c2"]), ["r2", "c2"]);
    lab.run(["validate", "-M", "m", "--only", "c2"]).exits(0).says("note: r2 is added");
    lab.run(["validate", "-M", "m", "--only", "c9"]).exits(3).says("did you mean `c1`?");
    lab.run(["validate", "-M", "m", "--depth", "0"]).exits(2);
    for verb in ["validate", "create"] {
        lab.run([verb, "-M", "m", "-H", "local", "--only", "c1,c2", "--depth", "1"])
            .exits(3)
            .says("`--depth 1` leaves nothing of `--only c1,c2`");
    }
}

/// Case 12, as far as validate shows it: every row of the mode rule.
#[test]
fn modes_follow_the_rule() {
    let nodes = "  - {name: silent, type: vm}\n  - {name: own, type: vm, execution: {mode: hybrid}}\n  - {name: phased, type: vm, execution: {mode: hybrid, phases: {config: push}}}\n  - {name: child, type: vm, parent: own}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(nodes))]);
    let modes = |args: &[&str]| -> String {
        let document = validate(&lab, &[&["-M", "m"], args].concat()).exits(0).document();
        let modes: Vec<&str> =
            document["nodes"].as_array().unwrap().iter().map(|node| node["mode"].as_str().unwrap()).collect();
        modes.join(" ")
    };
    assert_eq!(modes(&[]), "push hybrid push push");
    assert_eq!(modes(&["--mode", "pull"]), "pull pull pull pull");
    write(
        &lab,
        "manifests/m.yaml",
        &manifest(nodes).replace("nodes:", "execution: {default_mode: pull}\nnodes:"),
    );
    assert_eq!(modes(&[]), "pull hybrid push pull");
}

#[test]
fn a_host_that_cannot_make_it_is_told() {
    let lab = site(&[
        ("hosts/box.yaml", "driver: oci\n"),
        ("manifests/m.yaml", &manifest("  - {name: a, type: vm}\n  - {name: b, type: ct}\n")),
    ]);
    let document = validate(&lab, &["-M", "m", "-H", "ann@box"]).exits(1).document();
    assert_eq!(
        problems(&document),
        ["node/type-unsupported nodes[0].type", "node/missing-image nodes[1].template"]
    );
    assert_eq!(document["host"], "box");
    validate(&lab, &["-M", "m", "-H", "local"]).exits(0);
}

/// Without `-M` every file of the site is looked at.
#[test]
fn a_whole_site_is_checked() {
    let lab = site(&[
        ("manifests/m.yaml", &manifest("  - {name: a, type: vm}\n")),
        ("specs/extra.yaml", "colour: red\n"),
    ]);
    validate(&lab, &["-M", "m"]).exits(0);
    let document = validate(&lab, &[]).exits(1).document();
    assert_eq!((&document["manifest"], &document["nodes"]), (&json!(null), &json!([])));
    assert!(problems(&document).contains(&"node/unknown-key colour".to_owned()), "{document}");
    write(&lab, "secrets.yaml", "auth: {signing_key: hunter2hunter2}\n");
    let ended = lab.run(["validate"]).exits(1);
    assert!(!ended.stdout.contains("hunter2") && !ended.stderr.contains("hunter2"));
}

/// A host counts for a whole site; what is about nodes needs a manifest.
#[test]
fn a_whole_site_is_checked_for_a_host() {
    let lab = site(&[
        ("manifests/m.yaml", &manifest("  - {name: a, type: ct, template: t}\n")),
        ("hosts/vms.yaml", "driver: qemu\n"),
    ]);
    validate(&lab, &[]).exits(0);
    let document = validate(&lab, &["-H", "vms"]).exits(1).document();
    assert_eq!(problems(&document), ["node/type-unsupported nodes[0].type"]);
    validate(&lab, &["-H", "nope"]).exits(3);
    for flags in [&["--only", "a"][..], &["--depth", "1"], &["--mode", "pull"]] {
        validate(&lab, flags).exits(2);
    }
}

/// What is wrong with a manifest is told whatever else was asked for, and names come with what was meant.
#[test]
fn other_mistakes_hide_no_problem() {
    let lab = site(&[
        ("manifests/m.yaml", &manifest("  - {name: a, type: zebra, spec: bsae}\n")),
        ("manifests/good.yaml", "schema_version: 2\nname: good\nnodes: [{name: alpha, type: vm}]\n"),
        ("manifests/First.yaml", "schema_version: 2\nname: First\nnodes: [{name: a, type: vm}]\n"),
        ("hosts/alpha.yaml", "driver: sandbox\n"),
        ("hosts/beta.yaml", "driver: sandbox\n"),
    ]);
    let document = validate(&lab, &["-M", "m", "--only", "nope"]).exits(1).document();
    assert_eq!(problems(&document), ["node/bad-enum nodes[0].type", "node/unknown-fk nodes[0].spec"]);
    let document = validate(&lab, &["-M", "m", "-H", "alpah"]).exits(3).document();
    let rows = document["diagnostics"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{document}");
    assert_eq!(rows[0]["candidates"], json!(["alpha", "beta", "local"]));
    let message = rows[0]["message"].as_str().unwrap();
    for part in ["nodes/alpah.yaml", "hosts/alpah.yaml", "alpha, beta, local"] {
        assert!(message.contains(part), "{message}");
    }
    let document = validate(&lab, &["-M", "good", "--only", "alhpa"]).exits(3).document();
    assert_eq!(document["diagnostics"][0]["candidates"], json!(["alpha"]));
    for nothing in ["", ","] {
        validate(&lab, &["-M", "good", "--only", nothing]).exits(3);
    }
    let document = validate(&lab, &["-M", "First"]).exits(3).document();
    assert_eq!(document["error"]["code"], "node/bad-name", "{document}");
}

/// A manifest that stands for nodes it cannot have is answered, not fallen over.
#[test]
fn refused_nodes_are_no_parents() {
    let nodes =
        "  - {name: a-1, type: vm}\n  - {name: x, type: vm, parent: a}\n  - {name: a, type: vm, count: 1}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(nodes)), ("site.yml", "")]);
    let document = validate(&lab, &["-M", "m"]).exits(1).document();
    assert_eq!(
        problems(&document),
        ["node/unknown-parent nodes[1].parent", "node/duplicate-name nodes[2].name"]
    );
    assert_eq!(document["warnings"][0]["file"], "site-config/site.yml");
}
