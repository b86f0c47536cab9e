//! VMs as they are written, and their one spelling.

use super::*;
use crate::diagnostic::{Diagnostics, Source};

/// The VM of section 4 as Nix gives it, with its artifacts resolved.
pub(in crate::fleet) const WEB: &str = r#"{"web": {"labels": {"tier": "web"}, "replicas": 2, "resources": {"cpuMilli": 1000, "memMiB": 512},
 "selector": {"disk": "ssd"}, "runtime": {"cmdline": "console=ttyS0 root=/dev/vda",
 "disks": [{"image": {"storePath": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web/disk.raw", "narHash": "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM="}}],
 "kernel": {"storePath": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web", "sub": "vmlinux", "narHash": "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM="}}}}"#;

fn source(text: &str) -> Source {
    Source { name: "vms".into(), text: text.into() }
}

fn read(text: &str) -> (Vec<VmSpec>, Vec<String>) {
    let (group, defaults) = (GroupName::default_group(), VmDefaults::default());
    let reading = Reading { group: Some(&group), defaults: &defaults, driver: Some(Driver::CloudHypervisor) };
    let mut diagnostics = Diagnostics::default();
    let vms = read_vms(&source(text), &reading, &mut diagnostics);
    let told = diagnostics.iter().map(|p| format!("{} {} {}", p.code, p.path, p.message)).collect();
    (vms, told)
}

/// Section 4: the canonical text of the vector, byte for byte.
#[test]
fn the_vector_has_its_one_spelling() {
    let (vms, told) = read(WEB);
    assert_eq!(told, Vec::<String>::new());
    let text = format!("[{}]", vms[0].to_canonical());
    assert_eq!(
        text,
        r#"[{"id":"web","labels":{"tier":"web"},"replicas":2,"resources":{"cpuMilli":1000,"memMiB":512},"runtime":{"cmdline":"console=ttyS0 root=/dev/vda","disks":[{"image":{"narHash":"sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=","storePath":"/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web","sub":"disk.raw"}}],"driver":"cloud-hypervisor","kernel":{"narHash":"sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=","storePath":"/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web","sub":"vmlinux"}},"selector":[{"key":"disk","op":"in","values":["ssd"]}]}]"#
    );
    assert_eq!(text.len(), 553);
    assert_eq!(vms[0].to_canonical_machine().len(), 448);
}

/// What travels reads back as the same VM.
#[test]
fn the_one_spelling_is_read_back() {
    let text = r#"[{"id": "db", "replicas": 1, "resources": {"cpuMilli": 1, "memMiB": 2, "diskMiB": 3}, "singleton": true, "onLost": "wait", "stopSeconds": 5,
      "priority": -7, "pin": "w1.lab", "spread": {"key": "zone", "maxPerWorker": 1, "notWith": ["web", "api"]},
      "restart": {"policy": "on-failure", "backoffSeconds": 1, "maxBackoffSeconds": 2, "stableSeconds": 3},
      "ready": {"kind": "http", "port": 80, "path": "/up", "intervalSeconds": 9, "timeoutSeconds": 8},
      "rollout": {"maxUnavailable": "25%", "canary": 1, "minReadySeconds": 0, "progressDeadlineSeconds": 9, "autoHold": false, "pause": true},
      "volumes": [{"name": "data", "sizeMiB": 10, "retain": "delete", "movable": true}],
      "selector": [{"key": "gpu", "op": "notExists"}, {"key": "disk", "op": "notIn", "values": ["b", "a"]}],
      "runtime": {"driver": "qemu", "arch": "aarch64", "firmware": {"sha256": "1111111111111111111111111111111111111111111111111111111111111111", "size": 5, "name": "fw"},
        "disks": [{"volume": "data", "readOnly": true, "format": "qcow2"}], "vsock": true, "argv": ["a", ""], "env": {"A": "é\n"}, "cwd": "/x",
        "nets": [{"mode": "tap", "bridge": "br0", "mac": "02:00:00:00:00:01"}, {"ports": [{"guest": 80, "host": 8080}]}, {"mode": "none"}],
        "artifacts": ["/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x"]}}]"#;
    let mut diagnostics = Diagnostics::default();
    let vms = read_specs(&source(text), &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    let again = read_specs(&source(&format!("[{}]", vms[0].to_canonical())), &mut diagnostics);
    assert_eq!((diagnostics.to_string(), again), (String::new(), vms));
}

/// Section 4: spelling a default out changes nothing.
#[test]
fn defaults_spelled_out_change_nothing() {
    let bare = r#"{"a": {"resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {"driver": "sandbox"}}}"#;
    let full = r#"[{"id": "a", "replicas": 1, "labels": {}, "selector": [], "spread": {"key": "", "maxPerWorker": 0, "notWith": []}, "pin": "", "priority": 0,
      "resources": {"cpuMilli": 1, "memMiB": 1, "diskMiB": 0}, "restart": {"policy": "always", "backoffSeconds": 10, "maxBackoffSeconds": 300, "stableSeconds": 600},
      "ready": {"kind": "started", "intervalSeconds": 2, "timeoutSeconds": 60}, "onLost": "move", "singleton": false, "stopSeconds": 30, "volumes": [],
      "rollout": {"maxUnavailable": 1, "canary": 0, "minReadySeconds": 10, "progressDeadlineSeconds": 600, "autoHold": true, "pause": false},
      "runtime": {"driver": "sandbox", "arch": "x86_64", "argv": [], "env": {}, "vsock": false, "artifacts": []}}]"#;
    let (bare, full) = (read(bare), read(full));
    assert_eq!((&bare.1, &full.1), (&vec![], &vec![]));
    assert_eq!(bare.0[0].to_canonical(), full.0[0].to_canonical());
    assert_eq!(
        bare.0[0].to_canonical(),
        r#"{"id":"a","resources":{"cpuMilli":1,"memMiB":1},"runtime":{"driver":"sandbox"}}"#
    );
}

/// Section 3, case 5: empty, missing and null required values name VM and field, all at once.
#[test]
fn every_problem_names_its_vm_and_field() {
    let (vms, told) = read(
        r#"{"web": {"resources": {"cpuMilli": 1.5, "memMiB": 0}, "runtime": {"kernel": "", "driver": "sandboxx"}},
            "db": {"id": "other", "group": "x", "replicas": 2, "singleton": true, "resources": {"cpuMilli": 1, "memMiB": 1},
                   "runtime": {"kernel": null, "disks": [{"volume": "d"}], "rootfs": "/nix/store/x"}},
            "Bad": {"runtime": {"kernel": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x"}, "selector": [{"key": "a", "op": "in"}], "colour": 1}}"#,
    );
    assert_eq!(vms, []);
    assert_eq!(
        told,
        [
            "fleet/bad-type web.resources.cpuMilli VM `web`: expected a whole number from 1 to 1024000, found the number 1.5",
            "fleet/out-of-range web.resources.memMiB VM `web`: expected a whole number from 1 to 16777216, found the number 0",
            "fleet/bad-enum web.runtime.driver VM `web`: `sandboxx` is not one of its values",
            "fleet/bad-type web.runtime.kernel VM `web`: must not be empty",
            "fleet/conflict db.id VM `db`: `id` is the text `other`, and the VM is called `db`",
            "fleet/conflict db.group VM `db`: the group is set by where the VM is, never by hand",
            "fleet/bad-type db.runtime.kernel VM `db`: expected an artifact, found nothing",
            "fleet/bad-type db.runtime.rootfs VM `db`: the text `/nix/store/x` is not a path of the Nix store",
            "fleet/unknown-key Bad.colour VM `Bad`: a VM has no key `colour`",
            "fleet/missing-field Bad.resources VM `Bad`: a VM needs the key `resources`",
            "fleet/bad-name Bad VM `Bad`: `Bad` is not a VM id: lower-case letters, digits or `-`, at most 63 in all, no `-` at either end",
            "fleet/missing-field Bad.selector[0] VM `Bad`: `in` needs at least one of `values`",
        ]
    );
}

#[test]
fn fields_that_do_not_fit_together_are_told() {
    let (_, told) = read(
        r#"[{"id": "a", "replicas": 2, "singleton": true, "spread": {"notWith": ["a"]}, "resources": {"cpuMilli": 1, "memMiB": 1},
             "ready": {"kind": "tcp", "path": "/"}, "runtime": {"disks": [{"volume": "d"}], "rootfs": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x"}},
            {"id": "b", "resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {"driver": "oci", "kernel": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x", "nets": [{"bridge": "x"}, {"mode": "tap"}]}},
            {"id": "c", "resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {"driver": "sandbox"}},
            {"id": "c", "resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {"driver": "sandbox"}},
            {"resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {"driver": "sandbox"}}]"#,
    );
    let codes: Vec<String> =
        told.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        codes,
        [
            "fleet/missing-field [0].ready",
            "fleet/conflict [0].ready.path",
            "fleet/conflict [0].singleton",
            "fleet/conflict [0].spread.notWith",
            "fleet/conflict [0].runtime.rootfs",
            "fleet/missing-field [0].runtime",
            "fleet/unknown-volume [0].runtime.disks[0]",
            "fleet/conflict [1].runtime.nets[0].bridge",
            "fleet/missing-field [1].runtime.nets[1]",
            "fleet/conflict [1].runtime.kernel",
            "fleet/missing-field [1].runtime",
            "fleet/missing-field [4]",
            "fleet/duplicate-id [3].id",
        ]
    );
}

/// Sections 3, 4: nothing that only looks like a value passes.
#[test]
fn what_says_nothing_is_told() {
    let kernel = |hash: &str| {
        format!(r#"{{"storePath": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x", "narHash": "{hash}"}}"#)
    };
    let vm = |more: &str, hash: &str| {
        let kernel = kernel(hash);
        read(&format!(
            r#"{{"a": {{"resources": {{"cpuMilli": 1, "memMiB": 1}}, {more} "runtime": {{"kernel": {kernel}}}}}}}"#
        ))
        .1
    };
    let hash = "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=";
    assert_eq!(vm("", hash), Vec::<String>::new());
    let told = vm("", &hash.replace("EN3", "EN3 "));
    assert!(told[0].starts_with("fleet/bad-type a.runtime.kernel.narHash VM `a`: "), "{told:?}");
    for argv in ["[]", r#"[""]"#, r#"["", "x"]"#] {
        let told = vm(&format!(r#""ready": {{"kind": "exec", "argv": {argv}}},"#), hash);
        let message = "fleet/bad-type a.ready.argv VM `a`: `argv` begins with a program, and here is none";
        assert_eq!(told, [message], "{argv}");
    }
    assert_eq!(vm(r#""ready": {"kind": "exec", "argv": ["/bin/true", ""]},"#, hash), Vec::<String>::new());
}

/// Section 3: a volume has one format.
#[test]
fn a_volume_has_one_format() {
    let disks = |second: &str| {
        read(&format!(
            r#"{{"a": {{"resources": {{"cpuMilli": 1, "memMiB": 1}}, "volumes": [{{"name": "d", "sizeMiB": 1}}],
                "runtime": {{"kernel": "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-x",
                    "disks": [{{"volume": "d", "format": "qcow2"}}, {second}]}}}}}}"#
        ))
        .1
    };
    assert_eq!(disks(r#"{"volume": "d", "format": "qcow2", "readOnly": true}"#), Vec::<String>::new());
    let message = "fleet/conflict a.runtime.disks[1] VM `a`: the volume `d` is a disk of two formats";
    assert_eq!(disks(r#"{"volume": "d"}"#), [message]);
}

#[test]
fn defaults_lie_under_what_a_vm_says() {
    let group = GroupName::parse("edge").unwrap();
    let defaults = VmDefaults {
        stop_seconds: Some(5),
        driver: Some(Driver::Sandbox),
        on_lost: Some(OnLost::Wait),
        ..VmDefaults::default()
    };
    let reading = Reading { group: Some(&group), defaults: &defaults, driver: Some(Driver::Qemu) };
    let text = r#"{"a": {"onLost": "move", "resources": {"cpuMilli": 1, "memMiB": 1}, "runtime": {}}}"#;
    let mut diagnostics = Diagnostics::default();
    let vms = read_vms(&source(text), &reading, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    let (vm, group) = (&vms[0], vms[0].group.as_str());
    assert_eq!(
        (vm.stop_seconds, vm.on_lost, vm.runtime.driver, group),
        (5, OnLost::Move, Driver::Sandbox, "edge")
    );
}

#[test]
fn amounts_are_rounded_down_and_at_least_one() {
    for (amount, total, count) in [
        (Amount::Count(1), 9, 1),
        (Amount::Percent(25), 9, 2),
        (Amount::Percent(0), 9, 1),
        (Amount::Percent(100), 9, 9),
        (Amount::Percent(10), 3, 1),
    ] {
        assert_eq!(amount.of(total), count);
    }
    // A count is written as it is meant; a part of few is rounded.
    let told = |amount: &str| {
        read(&format!(
            r#"{{"a": {{"resources": {{"cpuMilli": 1, "memMiB": 1}}, "rollout": {{"maxUnavailable": {amount}}}, "runtime": {{"driver": "sandbox"}}}}}}"#
        ))
        .1
    };
    assert_eq!((told("1"), told("\"0%\"")), (vec![], vec![]));
    assert!(told("0")[0].starts_with("fleet/out-of-range a.rollout.maxUnavailable"), "{:?}", told("0"));
}
