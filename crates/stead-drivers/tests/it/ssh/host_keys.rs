//! Case 3: unknown, new, changed, revoked, certified and pinned host keys.

use super::*;
use stead_model::ErrorClass;
use stead_model::transport::HostKeys;
use stead_runner::transport::TransportErrorKind;
use stead_testkit::sshd::{KeyKind, certify, fingerprint, make_key};

async fn refused(account: &Account, spec: SshSpec) -> String {
    let error = account.connect(spec).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::HostKey, "{error}");
    assert_eq!(error.class(), ErrorClass::Unreachable);
    assert!(!error.may_pass());
    error.message
}

fn known_hosts(server: &Sshd, text: &str) -> SshSpec {
    let path = server.file("given_hosts");
    std::fs::write(&path, text).unwrap();
    SshSpec { known_hosts: Some(path.display().to_string()), ..server.spec() }
}

/// Case 3.
#[tokio::test]
async fn an_unknown_key_is_refused_with_its_fingerprint_and_the_ways_on() {
    let server = Sshd::start();
    let spec = SshSpec { known_hosts: None, ..server.spec() };
    let account = Account::new();
    let message = refused(&account, spec).await;
    let print = fingerprint(&server.file("host_ed25519.pub"));
    let file = account.home.path().join(".ssh/known_hosts").display().to_string();
    for part in [
        &format!("127.0.0.1:{}", server.port()),
        "ssh-ed25519",
        &print,
        &file,
        &format!("ssh-keyscan -p {} 127.0.0.1", server.port()),
        "known_hosts=",
        "host_keys=accept-new",
        "insecure=true",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(!std::path::Path::new(&file).exists());
}

/// Case 3.
#[tokio::test]
async fn a_new_key_is_recorded_once_and_a_changed_one_refused_in_both_modes() {
    let server = Sshd::start();
    let account = Account::new();
    let file = account.home.path().join(".ssh/known_hosts");
    let spec = SshSpec { known_hosts: None, host_keys: Some(HostKeys::AcceptNew), ..server.spec() };
    // At once and one after the other: one line.
    let (one, other) = tokio::join!(account.connect(spec.clone()), account.connect(spec.clone()));
    one.unwrap();
    other.unwrap();
    account.connect(spec.clone()).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, server.known_host(KeyKind::Ed25519));
    assert_eq!(account.noticed("reach/new-host-key").len(), 1);
    // OpenSSH finds what we wrote.
    let found = std::process::Command::new("ssh-keygen")
        .args(["-F", &format!("[127.0.0.1]:{}", server.port()), "-f"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(found.status.success());

    let old = fingerprint(&server.file("host_ed25519.pub"));
    let other = Sshd::builder().start();
    let lines = format!(
        "# first\n{}",
        server.known_host(KeyKind::Ed25519).replace(&server.port().to_string(), &other.port().to_string())
    );
    let new = fingerprint(&other.file("host_ed25519.pub"));
    for host_keys in [HostKeys::Strict, HostKeys::AcceptNew] {
        let spec = SshSpec { host_keys: Some(host_keys), ..known_hosts(&other, &lines) };
        let path = spec.known_hosts.clone().unwrap();
        let message = refused(&account, spec).await;
        for part in [&old, &new, &format!("{path}:2")] {
            assert!(message.contains(part.as_str()), "{part} in {message}");
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), lines, "nothing is recorded");
    }
}

/// Case 3.
#[tokio::test]
async fn a_new_key_is_recorded_hashed_if_so_configured() {
    let server = Sshd::start();
    let account = Account::new();
    std::fs::write(account.home.path().join(".ssh/config"), "HashKnownHosts yes\nStrictHostKeyChecking no\n")
        .unwrap();
    let spec = SshSpec { known_hosts: None, ssh_config: None, ..server.spec() };
    account.connect(spec.clone()).await.unwrap();
    account.connect(spec).await.unwrap();
    let text = std::fs::read_to_string(account.home.path().join(".ssh/known_hosts")).unwrap();
    assert!(text.starts_with("|1|") && text.lines().count() == 1, "{text}");
    // `no` is read as accept-new, and said.
    let said = account.noticed("reach/host-keys");
    assert!(said[0].contains("read as accept-new"), "{said:?}");
    let found = std::process::Command::new("ssh-keygen")
        .args(["-F", &format!("[127.0.0.1]:{}", server.port()), "-f"])
        .arg(account.home.path().join(".ssh/known_hosts"))
        .output()
        .unwrap();
    assert!(found.status.success(), "ssh-keygen does not find the hashed line");
}

/// Section 2: the two lines that many configurations of labs have: every key is new, and none is kept.
#[tokio::test]
async fn keys_that_go_to_dev_null_are_accepted_and_not_kept() {
    let server = Sshd::start();
    let account = Account::new();
    let config = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n";
    std::fs::write(account.home.path().join(".ssh/config"), config).unwrap();
    let spec = SshSpec { known_hosts: None, ssh_config: None, ..server.spec() };
    account.connect(spec.clone()).await.unwrap();
    account.connect(spec).await.unwrap();
    let said = account.noticed("reach/new-host-key");
    assert!(said.iter().all(|line| line.contains("is not kept by /dev/null")), "{said:?}");
}

/// Case 3.
#[tokio::test]
async fn insecure_checks_nothing_and_the_spec_warns() {
    let server = Sshd::start();
    let spec = SshSpec { insecure: true, ..known_hosts(&server, "") };
    Account::new().connect(spec.clone()).await.unwrap();
    let warnings = TransportSpec::Ssh(Box::new(spec)).warnings();
    assert!(warnings.iter().any(|(code, _)| *code == "reach/insecure"), "{warnings:?}");
}

#[tokio::test]
async fn a_known_type_is_asked_for_first() {
    let server = Sshd::builder().host_keys(&[KeyKind::Ecdsa, KeyKind::Ed25519, KeyKind::Rsa]).start();
    for kind in [KeyKind::Ed25519, KeyKind::Ecdsa, KeyKind::Rsa] {
        let spec = known_hosts(&server, &server.known_host(kind));
        Account::new().connect(spec).await.unwrap();
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_with_its_line() {
    let server = Sshd::start();
    let line = server.known_host(KeyKind::Ed25519);
    let spec = known_hosts(&server, &format!("{line}@revoked * {}", line.split_once(' ').unwrap().1));
    let message = refused(&Account::new(), spec).await;
    assert!(message.contains("given_hosts:2 revokes"), "{message}");
}

#[tokio::test]
async fn a_pinned_key_needs_no_file_and_is_the_only_one() {
    let server = Sshd::start();
    let line = server.known_host(KeyKind::Ed25519);
    let key = line.trim().split_once(' ').unwrap().1.to_owned();
    let print = fingerprint(&server.file("host_ed25519.pub"));
    for pin in [print.clone(), key] {
        let spec = SshSpec { host_key: Some(pin), ..known_hosts(&server, "") };
        Account::new().connect(spec).await.unwrap();
    }
    let other = fingerprint(&server.file("id.pub"));
    let spec = SshSpec { host_key: Some(other.clone()), ..server.spec() };
    let message = refused(&Account::new(), spec).await;
    assert!(message.contains(&other) && message.contains(&print), "{message}");
}

/// Section 2: the pinned key is asked for, whichever of its keys a server would show first.
#[tokio::test]
async fn a_pinned_key_may_be_any_of_the_keys_of_a_server() {
    let kinds = [KeyKind::Ed25519, KeyKind::Ecdsa, KeyKind::Rsa];
    let server = Sshd::builder().host_keys(&kinds).start();
    let print = |kind: KeyKind| fingerprint(&server.file(&format!("host_{}.pub", kind.name())));
    let config = server.file("config");
    // What ssh_config would rather have does not make it another machine.
    std::fs::write(&config, "HostKeyAlgorithms ssh-ed25519,rsa-sha2-512,ecdsa-sha2-nistp256\n").unwrap();
    for kind in kinds {
        let key = server.known_host(kind).trim().split_once(' ').unwrap().1.to_owned();
        for pin in [print(kind), key] {
            for ssh_config in ["none", config.to_str().unwrap()] {
                let ssh_config = Some(ssh_config.to_owned());
                let spec = SshSpec { host_key: Some(pin.clone()), ssh_config, ..known_hosts(&server, "") };
                let connected = Account::new().connect(spec).await;
                connected.unwrap_or_else(|error| panic!("{pin}: {error}"));
            }
        }
    }
    let other = fingerprint(&server.file("id.pub"));
    let spec = SshSpec { host_key: Some(other.clone()), ..server.spec() };
    let message = refused(&Account::new(), spec).await;
    assert!(
        message.contains(&other) && kinds.iter().all(|kind| message.contains(&print(*kind))),
        "{message}"
    );
    // A pin of a type that the server has, and another key: no other is asked for.
    let own = std::fs::read_to_string(server.file("id.pub")).unwrap();
    let spec = SshSpec { host_key: Some(own.trim().to_owned()), ..server.spec() };
    let message = refused(&Account::new(), spec).await;
    assert!(
        message.contains(&print(KeyKind::Ed25519)) && !message.contains(&print(KeyKind::Rsa)),
        "{message}"
    );
}

#[tokio::test]
async fn a_host_certificate_counts_if_an_authority_vouches_for_this_host() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, key) = (directory.path().join("ca"), directory.path().join("host"));
    make_key(&authority, KeyKind::Ed25519);
    make_key(&key, KeyKind::Ed25519);
    let certificate = certify(&authority, &key, "127.0.0.1,alias", true);
    let server = Sshd::builder()
        .config(&format!("HostKey {}", key.display()))
        .config(&format!("HostCertificate {}", certificate.display()))
        .start();
    let authority_key = std::fs::read_to_string(authority.with_extension("pub")).unwrap();
    Account::new()
        .connect(known_hosts(&server, &format!("@cert-authority 127.0.0.* {authority_key}")))
        .await
        .unwrap();
    // The authority is for other hosts.
    let message =
        refused(&Account::new(), known_hosts(&server, &format!("@cert-authority *.example {authority_key}")))
            .await;
    assert!(message.contains("unknown key"), "{message}");
    // The certificate is for other hosts.
    std::fs::write(server.file("config"), "HostKeyAlias elsewhere\n").unwrap();
    let spec = SshSpec {
        ssh_config: Some(server.file("config").display().to_string()),
        ..known_hosts(&server, &format!("@cert-authority * {authority_key}"))
    };
    let message = refused(&Account::new(), spec).await;
    assert!(message.contains("is for 127.0.0.1, alias, not for elsewhere"), "{message}");
    // The authority is revoked.
    let lines = format!("@cert-authority * {authority_key}@revoked * {authority_key}");
    let message = refused(&Account::new(), known_hosts(&server, &lines)).await;
    assert!(message.contains("revokes"), "{message}");
}

#[tokio::test]
async fn an_unreadable_file_lets_nothing_through() {
    let server = Sshd::start();
    let spec = SshSpec { known_hosts: Some(server.path().display().to_string()), ..server.spec() };
    let message = refused(&Account::new(), spec).await;
    assert!(message.contains("cannot be used to check host keys"), "{message}");
}
