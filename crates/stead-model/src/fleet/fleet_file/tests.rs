//! `fleet.yaml` as it is written.

use super::*;

fn read(text: &str) -> (FleetFile, Vec<String>) {
    let source = Source { name: "fleet.yaml".into(), text: text.into() };
    let mut diagnostics = Diagnostics::default();
    let file = FleetFile::read(&source, &mut diagnostics);
    let told = diagnostics.iter().map(|p| format!("{} {} {}", p.code, p.place, p.message)).collect();
    (file, told)
}

#[test]
fn a_file_with_everything_is_read_and_fits_its_schema() {
    let hash = "ab".repeat(32);
    let text = format!(
        "api_version: v1\nworkers: {{w1: {{labels: {{disk: ssd}}, cordon: true, reserve: {{memMiB: 512}}}}, w2: {{drain: true}}}}\n\
         groups: {{edge: {{allowEmpty: true}}}}\ndefaults: {{stopSeconds: 5, driver: sandbox, rollout: {{maxUnavailable: 50%}}}}\n\
         suspend: {{vms: [web]}}\napprove: [{hash}]\npolicy: {{liveness: {{lost: 10m}}, brake: {{min: 2}}, preempt: true}}\n\
         manifests: [manifests/a.yaml]\nvms: {{web: {{driver: qemu, selector: {{disk: ssd}}, resources: {{cpuMilli: 1, memMiB: 1}}}}}}\n\
         images: {{debian: {{path: images/debian.raw, sha256: {hash}}}}}\n"
    );
    let (file, told) = read(&text);
    assert_eq!(told, Vec::<String>::new());
    assert_eq!(
        file.to_canonical(),
        format!(
            r#"{{"approve":["{hash}"],"groups":{{"edge":{{"allowEmpty":true}}}},"policy":{{"brake":{{"min":2}},"liveness":{{"lost":"10m"}},"preempt":true}},"suspend":{{"vms":["web"]}},"workers":{{"w1":{{"cordon":true,"labels":{{"disk":"ssd"}},"reserve":{{"memMiB":512}}}},"w2":{{"drain":true}}}}}}"#
        )
    );
    assert!(file.is_suspended(&VmId::parse("web").unwrap()));
    let value = crate::yaml::read(
        &Source { name: "x".into(), text: text.into() },
        Codes::FLEET,
        &mut Diagnostics::default(),
    );
    let value = value.unwrap().root().to_json();
    let schema = crate::schema::fleet_schema(crate::schema::FleetFileKind::Fleet);
    let errors: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&value)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn a_file_without_wishes_is_the_default() {
    let (file, told) =
        read("api_version: v1\npolicy: {liveness: {late: 15s}, guard: {}}\nworkers: {w1: {cordon: false}}\n");
    assert_eq!((file.to_canonical().as_str(), told.len()), ("{}", 0));
}

/// Sections 2 and 4: a default that is spelled out is the default, and leaves no trace in the hash.
#[test]
fn every_default_that_is_spelled_out_is_one() {
    let (file, told) = read(
        "api_version: v1\n\
         workers: {w1: {labels: {}, cordon: false, drain: false, suspend: false}}\n\
         groups: {edge: {suspend: false, allowEmpty: false, removed: false}}\n\
         suspend: {all: false, vms: []}\napprove: []\n\
         policy:\n  \
           liveness: {heartbeat: 5s, late: 15s, unknown: 60s, lease: 120s, lost: 300s, movePerWorker: 10s}\n  \
           brake: {percent: 50, min: 3}\n  guard: {maxStopPercent: 50, minInstances: 10}\n  \
           preempt: false\n  rebalance: 0\n  trustWorkerLabels: true\n  requireSameSpecs: true\n\
         manifests: ['manifests/*.yaml']\n",
    );
    assert_eq!(told, Vec::<String>::new());
    assert_eq!((file.to_canonical().as_str(), file.policy), ("{}", Policy::default()));
    let (bare, _) = read("api_version: v1\n");
    assert_eq!(bare.policy, file.policy);
    for (key, value) in [
        ("liveness", "{heartbeat: 4s}"),
        ("liveness", "{late: 16s}"),
        ("liveness", "{unknown: 61s}"),
        ("liveness", "{lease: 121s}"),
        ("liveness", "{lost: 301s}"),
        ("liveness", "{movePerWorker: 11s}"),
        ("brake", "{percent: 51}"),
        ("brake", "{min: 4}"),
        ("guard", "{maxStopPercent: 51}"),
        ("guard", "{minInstances: 11}"),
        ("preempt", "true"),
        ("rebalance", "1"),
        ("trustWorkerLabels", "false"),
        ("requireSameSpecs", "false"),
    ] {
        let (other, told) = read(&format!("api_version: v1\npolicy: {{{key}: {value}}}\n"));
        assert_eq!(told, Vec::<String>::new());
        assert_ne!(other.to_canonical(), "{}", "{key}: {value}");
    }
}

#[test]
fn every_problem_of_a_file_has_its_place() {
    let (_, told) = read(
        "workers: {W: {cordon: yes}}\ngroups: {fleet: {suspend: true}}\napprove: [xyz]\n\
         policy: {liveness: {late: 5s, lost: 130s}, rebalance: -1}\nimages: {a: {sha256: x}}\ncolour: red\n",
    );
    assert_eq!(
        told,
        [
            "fleet/unknown-key fleet.yaml:6:1 fleet.yaml has no key `colour`",
            "fleet/missing-field fleet.yaml:1:1 fleet.yaml needs the key `api_version`",
            "fleet/bad-name fleet.yaml:1:11 `W` is not a worker name: lower-case letters, digits, `-` or `.`, at most 63 in all, a letter or digit at either end of each label",
            "fleet/bad-type fleet.yaml:1:23 expected true or false, found the text `yes`",
            "fleet/conflict fleet.yaml:2:10 `fleet` is the group of this file itself",
            "fleet/bad-type fleet.yaml:3:11 expected 64 lower-case hex digits, found the text `xyz`",
            "fleet/out-of-range fleet.yaml:4:27 `late` (5s) has to be longer than `heartbeat` (5s)",
            "fleet/out-of-range fleet.yaml:4:37 `lost` is at least 30s longer than `lease`: write `2m30s`",
            "fleet/out-of-range fleet.yaml:4:55 expected a whole number from 0 to 10000, found the number -1",
            "fleet/bad-type fleet.yaml:5:22 expected 64 lower-case hex digits, found the text `x`",
            "fleet/missing-field fleet.yaml:5:13 an image needs a `path` or a `url`",
        ]
    );
}

/// Section 3: labels that Stead gives every worker are nobody's to say.
#[test]
fn labels_of_stead_are_not_given_to_workers() {
    let (file, told) = read("api_version: v1\nworkers: {w1: {labels: {disk: ssd, stead/os: plan9}}}\n");
    assert_eq!(told, ["fleet/conflict fleet.yaml:2:36 labels of `stead/` are set by Stead"]);
    assert_eq!(file.workers.len(), 1);
}

/// Section 2, idea 5 of the design: what names nothing is said so, with the nearest name; what is meant to be gone is not.
#[test]
fn names_that_are_nobodys_are_told() {
    let text = "api_version: v1\nsuspend: {vms: [wbe, db]}\ngroups: {egde: {suspend: true}, old: {removed: true}, edge: {}}\n";
    let mut problems = Diagnostics::default();
    let file = FleetFile::read(&Source { name: "fleet.yaml".into(), text: text.into() }, &mut problems);
    assert!(!problems.has_errors(), "{problems}");
    let (web, db) = (VmId::parse("web").unwrap(), VmId::parse("db").unwrap());
    let (default, edge) = (GroupName::default_group(), GroupName::parse("edge").unwrap());
    assert_eq!(
        file.unmatched(&[&web, &db].into(), &[&default, &edge].into()),
        [
            "`suspend.vms` names `wbe`, and there is no such VM; did you mean `web`?",
            "`groups` names `egde`, and there is no such group; did you mean `edge`?",
        ]
    );
}
