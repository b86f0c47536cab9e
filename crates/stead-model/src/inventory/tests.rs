//! Inventories that are right and wrong.

use super::*;
use crate::transport::{BecomeMethod, SshSpec};

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

fn read(text: &str) -> Inventory {
    Inventory::read(&[source("inventory.yaml", text)]).unwrap()
}

fn refused(text: &str) -> Diagnostics {
    Inventory::read(&[source("inventory.yaml", text)]).unwrap_err()
}

fn labels(host: &Host) -> String {
    let pairs: Vec<String> = host.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

fn sudo() -> Become {
    Become { method: BecomeMethod::Sudo, user: None }
}

#[test]
fn reads_hosts_short_forms_labels_and_defaults() {
    let inventory = read(
        "api_version: v1\ndefaults: {labels: {site: vienna, zone: a}, parallel: 4}\nhosts:\n  web1: {transport: local, labels: {role: web.front, zone: b, rack: 7, spare: true}, root: /srv/image}\n  web2: ops@10.0.0.12\n  local: {transport: 'local://', description: here, parallel: 9}\n",
    );
    let web1 = &inventory.hosts["web1"];
    assert_eq!(labels(web1), "rack=7 role=web.front site=vienna source=inventory spare=true zone=b");
    assert_eq!((web1.root.as_deref(), web1.parallel), (Some("/srv/image"), Some(4)));
    assert_eq!(inventory.hosts["web2"].labels["zone"], "a");
    assert_eq!(inventory.hosts["web2"].transport.to_string(), "ssh://ops@10.0.0.12");
    assert_eq!(inventory.get("local").unwrap().parallel, Some(9));
    assert_eq!(inventory.get("nope"), None);
}

/// The example of the contract, word for word.
#[test]
fn the_contracts_example_is_read() {
    let inventory = read(
        r#"api_version: v1                                    # inventory.yaml
defaults: {become: sudo, labels: {site: vienna}}   # any host key but transport; labels are merged, the host's win
hosts:
  web1: {transport: "ssh://ops@10.0.0.11?key=~/.ssh/lab", labels: {role: web.front, zone: a}}
  web2: ops@10.0.0.12                              # short form: the transport
  here: {transport: local, root: /srv/image, labels: {role: builder}}
"#,
    );
    assert_eq!(inventory.hosts["web1"].transport.to_string(), "ssh://ops@10.0.0.11?key=~/.ssh/lab");
    assert_eq!(labels(&inventory.hosts["web1"]), "role=web.front site=vienna source=inventory zone=a");
    for host in inventory.hosts.values() {
        assert_eq!(host.account(), Some(&sudo()));
    }
}

#[test]
fn every_key_of_a_host_is_kept_and_the_host_wins_over_the_defaults() {
    let inventory = read(
        "api_version: v1\ndefaults: {become: sudo, become_password: {env: SUDO}, workdir: /w, executor: always, root: /r, parallel: 3, description: d}\nhosts:\n  a: ops@h\n  b: {transport: ops@h, become: 'doas:web', become_password: {file: /p}, workdir: /x, executor: auto, root: /, parallel: 1, description: e}\n  c: {transport: ops@h, become: none}\n",
    );
    let expected = Host {
        transport: TransportSpec::parse("ops@h").unwrap(),
        labels: [(SOURCE_LABEL.to_owned(), "inventory".to_owned())].into(),
        become_user: Some(sudo()),
        become_password: Some(SecretSource::Env("SUDO".into())),
        workdir: Some("/w".into()),
        executor: ExecutorMode::Always,
        root: Some("/r".into()),
        parallel: Some(3),
        description: Some("d".into()),
    };
    assert_eq!(inventory.hosts["a"], expected);
    let doas = Become { method: BecomeMethod::Doas, user: Some("web".into()) };
    let own = Host {
        become_user: Some(doas),
        become_password: Some(SecretSource::File("/p".into())),
        workdir: Some("/x".into()),
        executor: ExecutorMode::Auto,
        root: None,
        parallel: Some(1),
        description: Some("e".into()),
        ..expected.clone()
    };
    assert_eq!(inventory.hosts["b"], own);
    assert_eq!(inventory.hosts["c"], Host { become_user: None, become_password: None, ..expected });
}

/// Without an executor nothing changes the account or the root: the inventory says so, at its place.
#[test]
fn what_only_the_executor_heeds_excludes_doing_without_it() {
    let text = "api_version: v1
defaults: {executor: never}
hosts:
  a: {transport: ops@h, become: sudo}
  b: {transport: ops@h, root: /srv}
  c: {transport: 'ops@h?become=doas', executor: never}
  d: {transport: local, root: /srv}
  e: {transport: ops@h, become: sudo, executor: auto}
  f: ops@h
";
    let problems = refused(text);
    let told: Vec<String> = problems.iter().map(|problem| format!("{problem:?}")).collect();
    assert_eq!(problems.iter().count(), 3, "{told:#?}");
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`executor: never` and `become` exclude each other",
            "`executor: never` and `root` exclude each other",
            "`executor: never` and `become` exclude each other"
        ]
    );
}

#[test]
fn what_the_transport_says_wins_over_the_hosts_keys() {
    let inventory = read(
        "api_version: v1\nhosts:\n  a: {transport: 'u@h?become=doas&become_password=env:A', become: sudo, become_password: {env: B}}\n  b: {transport: 'u@h?become=doas', become_password: {env: B}}\n",
    );
    let doas = Become { method: BecomeMethod::Doas, user: None };
    assert_eq!(inventory.hosts["a"].account(), Some(&doas));
    assert_eq!(inventory.hosts["a"].account_password(), Some(&SecretSource::Env("A".into())));
    assert_eq!(inventory.hosts["b"].account_password(), Some(&SecretSource::Env("B".into())));
}

#[test]
fn local_is_always_there() {
    assert_eq!(Inventory::default().get("local"), Some(Host::local()));
    assert_eq!(Inventory::read(&[]).unwrap(), Inventory::default());
}

/// Case 14: everything at once, each with its place.
#[test]
fn everything_wrong_is_told_at_once() {
    let error = refused(
        "api_version: v2\nhosts:\n  all: local\n  _x: local\n  'a b': local\n  local: ops@h\n  web1: ops@10.0.0.1:0\n  web2: {transport: 'ssh://h?kye=/k', become: su, becom: sudo}\n  web3: {transport: local, workdir: x, executor: sh, become_password: {env: A}}\n  web4: {transport: local, labels: {source: x, 'a b': c, d: 'e..f', g: [1]}, root: x, parallel: 0}\n  web5: telnet\n  web6: {}\n  web7: 7\n  web8: {transport: local, become: sudo, become_password: {env: 'a b', vault: c}}\n  web9: {transport: local, become: sudo, become_password: {}}\n",
    );
    insta::assert_snapshot!(error.to_string());
}

/// Secrets in what is wrong, and beside it, are not shown.
#[test]
fn lines_of_problems_show_no_secret() {
    for text in [
        "api_version: v1\nhosts:\n  a: {transport: 'ssh://u:hunter2@h?kye=1', labels: {x: y}}\n",
        "api_version: v1\nhosts: {a: {transport: 'ssh://u:hunter2@h', colour: red}}\n",
        "api_version: v1\nhosts: {a: {transport: ssh://u:hunter2@h, colour: red}}\n",
        "api_version: v1\nhosts: {a: {transport: u@h?password=hunter2, colour: red}}\n",
        "api_version: v1\nhosts:\n  a:\n    become_password: hunter2\n    transport: local\n",
        "api_version: v1\nhosts: [ssh://u:hunter2@h\n",
    ] {
        let error = refused(text);
        let shown = format!("{} {error} {error:?}", error.render(false));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

/// Case 14: both places.
#[test]
fn one_name_with_two_definitions_names_both_places() {
    let a = source("a.yaml", "api_version: v1\nhosts: {web1: local, web2: local}\n");
    let b =
        source("b.yaml", "api_version: v1\nhosts: {web1: local, web2: {transport: local, parallel: 2}}\n");
    let error = Inventory::read(&[a.clone(), b]).unwrap_err();
    insta::assert_snapshot!(error.render(false));
    assert_eq!(Inventory::read(&[a.clone(), a]).unwrap().hosts.len(), 2);
}

/// Case 14: a registry of agents is an inventory too.
#[test]
fn agents_are_hosts() {
    let registry = source(
        "agents.yaml",
        "agents:\n  lab1: {transport: 'ssh://ops@h?insecure=true', description: bench, workdir: /w, name: lab1, last_check: 2024-01-01, status: ok, status_msg: '', os_arch: linux/amd64, cipdip_version: 1.0, pcap_capable: true}\n  lab2: local\n",
    );
    let same = source("inventory.yaml", "api_version: v1\nhosts: {lab2: local}\n");
    let inventory = Inventory::read(&[registry, same]).unwrap();
    let lab1 = &inventory.hosts["lab1"];
    assert_eq!(labels(lab1), "source=agents");
    assert_eq!((lab1.workdir.as_deref(), lab1.description.as_deref()), (Some("/w"), Some("bench")));
    let spec = SshSpec { user: Some("ops".into()), host: "h".into(), insecure: true, ..SshSpec::default() };
    assert_eq!(lab1.transport, TransportSpec::Ssh(Box::new(spec)));
    assert_eq!(Inventory::read(&[source("agents.yaml", "agents:\n")]).unwrap(), Inventory::default());
}

#[test]
fn what_is_wrong_with_agents_is_told_at_once() {
    let text = "agents:\n  a: {transport: host, colour: red}\n  _b: {}\n  c: [1]\n";
    let error = Inventory::read(&[source("agents.yaml", text)]).unwrap_err();
    insta::assert_snapshot!(error.to_string());
}
