//! Which directory is the site, and which host is meant.

use super::{Ended, manifest, site, validate};
use crate::cases_17_32::lab::Lab;

const NODES: &str = "  - {name: a, type: vm}\n";

/// Case 8: what is named must exist; the variable wins over `./site-config`; nothing names all places.
#[test]
fn a_site_that_is_named_must_exist() {
    let lab = site(&[]);
    lab.run(["validate", "--site", "nowhere"])
        .exits(3)
        .says("--site names the site directory")
        .says("nowhere");
    let run = |name: &str, value: &str| -> Ended {
        let mut command = lab.stead(["validate", "--json"]);
        command.env(name, lab.path(value)).output().unwrap().into()
    };
    run("STEAD_SITE", "nowhere").exits(3).says("STEAD_SITE names");
    lab.write("other/site.yaml", "name: other\n");
    let document = run("STEAD_SITE", "other").exits(0).document();
    assert_eq!(document["site"], lab.path("other").display().to_string());
    lab.write("root/config/site.yaml", "");
    let document = run("HOMESTAK_ROOT", "root").exits(0).document();
    assert_eq!(document["site"], lab.path("root/config").display().to_string());

    // Older names are asked in this order, and after ours.
    let order = ["STEAD_SITE", "HOMESTAK_SITE_CONFIG", "HOMESTAK_ETC", "HOMESTAK_ROOT"];
    for (place, name) in order.iter().enumerate() {
        lab.write(&format!("{name}/site.yaml"), "");
        lab.write(&format!("{name}/config/site.yaml"), "");
        let mut command = lab.stead(["validate", "--json"]);
        command.envs(order[place..].iter().map(|name| (name, lab.path(name))));
        let document = Ended::from(command.output().unwrap()).exits(0).document();
        let expected = if *name == "HOMESTAK_ROOT" { lab.path(name).join("config") } else { lab.path(name) };
        assert_eq!(document["site"], expected.display().to_string(), "{name}");
    }
    for name in order {
        run(name, "nowhere").exits(3).says(&format!("{name} names"));
    }

    let empty = Lab::new("");
    let ended = empty.run(["validate", "--json"]).exits(3);
    assert_eq!(ended.document()["valid"], false);
    ended.says("--site").says("STEAD_SITE").says("site-config").says("manifests/");
    empty.write("site.yaml", "");
    empty.run(["validate"]).exits(0);
}

/// Case 8: only in hosts, in both, in neither, with a user.
#[test]
fn a_host_is_looked_for_in_both_folders() {
    let lab = site(&[
        ("manifests/m.yaml", &manifest(NODES)),
        ("hosts/only.yaml", "driver: sandbox\n"),
        ("hosts/both.yaml", "driver: sandbox\n"),
        ("nodes/both.yaml", "datastore: d\napi_token: t\nip: 10.0.0.5\n"),
    ]);
    validate(&lab, &["-M", "m", "-H", "only"]).exits(0);
    validate(&lab, &["-M", "m", "-H", "ann@only"]).exits(0);
    // The Proxmox instance wins, and boots images.
    let both = validate(&lab, &["-M", "m", "-H", "both"]).exits(1).document();
    assert_eq!(
        super::problems(&both),
        ["node/missing-image nodes[0].image", "node/unknown-fk api_token"],
        "and its token is not among the secrets"
    );
    let ended = validate(&lab, &["-M", "m", "-H", "neither"]).exits(3);
    assert_eq!(
        ended.document()["diagnostics"][0]["candidates"],
        serde_json::json!(["both", "local", "only"])
    );
    ended.says("nodes/neither.yaml").says("hosts/neither.yaml");
    super::write(&lab, "hosts/only.yaml", "driver: sandbx\n");
    let broken = validate(&lab, &["-M", "m", "-H", "only"]).exits(1).document();
    assert_eq!(super::problems(&broken), ["node/bad-enum driver"]);
}
