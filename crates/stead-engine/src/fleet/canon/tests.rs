//! The vectors, and what hashes mind and do not.

use serde_json::{Value, json};
use stead_model::Diagnostics;
use stead_model::diagnostic::Source;
use stead_model::fleet::Artifact;
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::vm::{Amount, DiskSource, ReadyKind, read_specs};

use super::*;
use crate::fleet::testing::{Dice, any_vm, requires, vm, vm_id, volume};

const WEB: &str = r#"[{"id":"web","labels":{"tier":"web"},"replicas":2,"resources":{"cpuMilli":1000,"memMiB":512},"runtime":{"cmdline":"console=ttyS0 root=/dev/vda","disks":[{"image":{"narHash":"sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=","storePath":"/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web","sub":"disk.raw"}}],"driver":"cloud-hypervisor","kernel":{"narHash":"sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=","storePath":"/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web","sub":"vmlinux"}},"selector":[{"key":"disk","op":"in","values":["ssd"]}]}]"#;

fn read(text: &str) -> Vec<VmSpec> {
    let mut diagnostics = Diagnostics::default();
    let specs = read_specs(&Source { name: "specs".into(), text: text.into() }, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    specs
}

/// Case 7: the vectors of section 4.
#[test]
fn the_vectors_have_their_hashes() {
    let specs = read(WEB);
    assert_eq!(
        vm_hash(&specs[0]).to_string(),
        "e455cd219c0362b99b4499c89ff450e2b791778cc98d8d04005ea3f9fe2c7ce7"
    );
    let hash = specs_hash(&specs);
    assert_eq!(hash.to_string(), "0c4e9bdbfe92f2cc1a7c500fdac194db709fbd1818288edd4f10c7a2fc895a08");
    let commit = CommitId::parse("60a0e5f7ea71e87670f92cb0d5674464daba62cf").unwrap();
    assert_eq!(
        intent_hash(&commit, &GroupName::default_group(), &hash).to_string(),
        "4162ab121ab158b297f9ac6624de874563562e4d7c0ce87f5323a1a304a420bd"
    );
    assert_eq!(
        specs_hash([]).to_string(),
        "66da1ce98e995ef207e72157b9714b0f9dd704edfd9d95a4e10de7c39c5b4d7b"
    );
}

/// Section 4: another hash of the same path is another machine.
#[test]
fn other_bits_at_the_same_path_are_another_machine() {
    let specs = read(WEB);
    let mut other = specs[0].clone();
    if let DiskSource::Image(Artifact::Store { nar_hash, .. }) = &mut other.runtime.disks[0].source {
        *nar_hash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".to_owned();
    }
    assert_ne!(vm_hash(&other), vm_hash(&specs[0]));
    assert_ne!(specs_hash([&other]), specs_hash(&specs));
}

/// Section 4: order never matters, and what is read back is the same; 10,000 random lists.
#[test]
fn order_never_matters() {
    let mut dice = Dice::new(1);
    for _ in 0..10_000 {
        let mut specs: Vec<VmSpec> =
            (0..1 + dice.below(3)).map(|i| any_vm(&mut dice, &format!("v{i}"))).collect();
        for spec in &mut specs {
            spec.selector.push(requires("zone", "a"));
            spec.selector.push(requires("zone", "b"));
            for value in ["b", "c"] {
                spec.selector[0].values.insert(value.to_owned());
            }
            spec.labels.insert("b".to_owned(), "1".to_owned());
            spec.spread.not_with.extend(["x", "y", "z"].map(vm_id));
            spec.volumes = ["a", "b", "c"].map(|name| volume(name, dice.one_in(2))).into();
        }
        let hash = specs_hash(&specs);
        dice.shuffle(&mut specs);
        assert_eq!(specs_hash(&specs), hash);
        // Keys in another order, and a selector in another order, read as the same.
        let spec = &specs[0];
        let serde_json::Value::Object(fields) = spec.to_json() else { unreachable!("a VM is an object") };
        let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
        dice.shuffle(&mut fields);
        let shuffle = |dice: &mut Dice, list: Option<&mut Value>| {
            dice.shuffle(list.and_then(Value::as_array_mut).expect("it is there"));
        };
        for (key, value) in &mut fields {
            match key.as_str() {
                "selector" => {
                    shuffle(&mut dice, value[0].get_mut("values"));
                    shuffle(&mut dice, Some(value));
                }
                "spread" => shuffle(&mut dice, value.get_mut("notWith")),
                "volumes" => shuffle(&mut dice, Some(value)),
                _ => {}
            }
        }
        let fields: Vec<String> = fields.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
        let again = read(&format!("[{{{}}}]", fields.join(",")));
        assert_eq!((vm_hash(&again[0]), specs_hash(&again)), (vm_hash(spec), specs_hash([spec])));
    }
}

/// Section 4: what concerns placement and rollout changes the list and no machine; 10,000 random changes.
#[test]
fn only_what_a_machine_is_changes_its_hash() {
    let mut dice = Dice::new(2);
    for _ in 0..10_000 {
        let spec = any_vm(&mut dice, "v0");
        let mut other = spec.clone();
        match dice.below(5) {
            0 => other.replicas += 1,
            1 => drop(other.labels.insert("x".to_owned(), "y".to_owned())),
            2 => other.selector.push(requires("zone", "z")),
            3 => other.rollout.max_unavailable = Amount::Percent(30),
            _ => other.priority += 1,
        }
        assert_eq!(vm_hash(&other), vm_hash(&spec));
        assert_ne!(specs_hash([&other]), specs_hash([&spec]));
        let mut larger = spec.clone();
        larger.resources.mem_mib += 1;
        assert_ne!(vm_hash(&larger), vm_hash(&spec));
        // The same path with other bits.
        let bits = |digit: &str| {
            let mut spec = spec.clone();
            spec.runtime.artifacts.push(Artifact::Store {
                path: StorePath::parse("/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web").unwrap(),
                sub: None,
                nar_hash: format!("sha256-{}=", digit.repeat(43)),
            });
            spec
        };
        assert_ne!(vm_hash(&bits("A")), vm_hash(&bits("B")));
        assert_ne!(specs_hash([&bits("A")]), specs_hash([&bits("B")]));
    }
}

/// Section 4: a default that is spelled out changes no hash, at any depth; 10,000 random VMs.
#[test]
fn defaults_that_are_spelled_out_change_nothing() {
    let defaults = json!({
        "replicas": 1, "labels": {}, "selector": [], "priority": 0, "onLost": "move", "singleton": false,
        "stopSeconds": 30, "volumes": [],
        "restart": {"policy": "always", "backoffSeconds": 10, "maxBackoffSeconds": 300, "stableSeconds": 600},
        "ready": {"kind": "started", "intervalSeconds": 2, "timeoutSeconds": 60},
        "rollout": {
            "maxUnavailable": 1, "canary": 0, "minReadySeconds": 10, "progressDeadlineSeconds": 600,
            "autoHold": true, "pause": false,
        },
        "spread": {"maxPerWorker": 0, "notWith": []}, "resources": {"diskMiB": 0},
        "runtime": {"arch": "x86_64", "argv": [], "env": {}, "vsock": false, "artifacts": []},
    });
    let mut dice = Dice::new(3);
    for _ in 0..10_000 {
        let mut spec = any_vm(&mut dice, "v0");
        if dice.one_in(3) {
            spec.ready.kind = ReadyKind::Http;
            spec.ready.port = Some(80);
        }
        let mut written = spec.to_json();
        let is_http = spec.ready.kind == ReadyKind::Http;
        spell_out(&mut written, &defaults, &mut dice);
        if is_http {
            written["ready"]["path"] = json!("/");
        }
        for volume in written.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
            spell_out(volume, &json!({"retain": "keep", "movable": false}), &mut dice);
        }
        let again = read(&json!([written]).to_string());
        assert_eq!(
            (vm_hash(&again[0]), specs_hash(&again)),
            (vm_hash(&spec), specs_hash([&spec])),
            "{written}"
        );
    }
}

/// Writes some of the defaults where nothing is said.
fn spell_out(written: &mut Value, defaults: &Value, dice: &mut Dice) {
    for (key, default) in defaults.as_object().into_iter().flatten() {
        match written.get_mut(key) {
            Some(said) if default.is_object() && said.is_object() => spell_out(said, default, dice),
            Some(_) => {}
            None if dice.one_in(2) => written[key] = default.clone(),
            None => {}
        }
    }
}

/// Section 4: a revert has the earlier list and means something new.
#[test]
fn a_revert_is_the_same_list_with_another_intent() {
    let hash = specs_hash([&vm("a", 1, 1, 1)]);
    let group = GroupName::default_group();
    let [first, second] = ["a", "b"].map(|digit| CommitId::parse(&digit.repeat(40)).unwrap());
    assert_ne!(intent_hash(&first, &group, &hash), intent_hash(&second, &group, &hash));
}
