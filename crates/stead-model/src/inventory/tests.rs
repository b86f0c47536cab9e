//! Inventories that are right and wrong.

use super::*;

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

#[test]
fn reads_hosts_short_forms_labels_and_defaults() {
    let text = "api_version: v1\ndefaults: {labels: {site: vienna, zone: a}, parallel: 4}\nhosts:\n  web1: {transport: local, labels: {role: web.front, zone: b, rack: 7, spare: true}, root: /srv/image}\n  web2: local\n  local: {transport: 'local://', description: here, parallel: 9}\n";
    let inventory = Inventory::read(&[source("inventory.yaml", text)]).unwrap();
    let web1 = &inventory.hosts["web1"];
    let labels: Vec<String> = web1.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        labels,
        ["rack=7", "role=web.front", "site=vienna", "source=inventory", "spare=true", "zone=b"]
    );
    assert_eq!((web1.root.as_deref(), web1.parallel), (Some("/srv/image"), Some(4)));
    assert_eq!(inventory.hosts["web2"].labels["zone"], "a");
    assert_eq!(inventory.get("local").unwrap().parallel, Some(9));
    assert_eq!(inventory.get("nope"), None);
}

#[test]
fn local_is_always_there() {
    assert_eq!(Inventory::default().get("local"), Some(Host::local()));
    assert_eq!(Inventory::read(&[]).unwrap(), Inventory::default());
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = "api_version: v2\nhosts:\n  all: local\n  _x: local\n  'a b': local\n  web1: ops@10.0.0.1\n  web2: {transport: 'ssh://h', become: sudo}\n  web3: {transport: local, workdir: /x, executor: sh}\n  web4: {transport: local, labels: {source: x, 'a b': c, d: 'e..f', g: [1]}, root: x, parallel: 0}\n  web5: telnet\n  web6: {}\n  web7: 7\n";
    let error = Inventory::read(&[source("inventory.yaml", text)]).unwrap_err();
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn one_name_with_two_definitions_names_both_places() {
    let a = source("a.yaml", "api_version: v1\nhosts: {web1: local, web2: local}\n");
    let b =
        source("b.yaml", "api_version: v1\nhosts: {web1: local, web2: {transport: local, parallel: 2}}\n");
    let error = Inventory::read(&[a.clone(), b]).unwrap_err();
    insta::assert_snapshot!(error.render(false));
    assert_eq!(Inventory::read(&[a.clone(), a]).unwrap().hosts.len(), 2);
}
