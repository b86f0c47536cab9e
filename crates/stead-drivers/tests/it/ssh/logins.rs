//! Case 2: every way to log in, and what a failure says.

use super::*;
use stead_model::ErrorClass;
use stead_model::transport::SecretSource;
use stead_runner::transport::TransportErrorKind;
use stead_testkit::sshd::{
    Account as Picture, KeyKind, SshAgent, certify, fingerprint, make_key, make_key_with,
};

fn with_key(server: &Sshd, key: &str) -> SshSpec {
    SshSpec { key: Some(server.file(key).display().to_string()), ..server.spec() }
}

/// A login that must fail, and its message.
async fn refused(account: &Account, spec: SshSpec) -> String {
    let error = account.connect(spec).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Login, "{error}");
    assert_eq!(error.class(), ErrorClass::Unreachable);
    assert!(!error.may_pass(), "a refused login is not tried again");
    error.message
}

/// Case 2.
#[tokio::test]
async fn the_agent_is_asked_first_and_can_be_left_out() {
    let server = Sshd::start();
    let agent = SshAgent::start();
    agent.add(&server.file("id"));
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    let mut spec = SshSpec { key: None, agent: None, ..server.spec() };
    let host = account.connect(spec.clone()).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
    spec.agent = Some(false);
    let message = refused(&account, spec).await;
    assert!(message.contains("The server offers: publickey"), "{message}");
}

/// Case 2.
#[tokio::test]
async fn a_key_of_a_file_works_and_a_wrong_one_is_named_by_its_fingerprint() {
    let server = Sshd::start();
    for (name, kind) in [("rsa", KeyKind::Rsa), ("ecdsa", KeyKind::Ecdsa)] {
        make_key(&server.file(name), kind);
        let message = refused(&Account::new(), with_key(&server, name)).await;
        assert!(message.contains(&fingerprint(&server.file(name))), "{message}");
        assert!(message.contains("refused"), "{message}");
        let mut keys = std::fs::read_to_string(server.file("authorized_keys")).unwrap();
        keys.push_str(&std::fs::read_to_string(server.file(&format!("{name}.pub"))).unwrap());
        std::fs::write(server.file("authorized_keys"), keys).unwrap();
        let host = Account::new().connect(with_key(&server, name)).await.unwrap();
        assert_eq!(output(&*host, &["echo", name]).await, format!("{name}\n"));
    }
    let message = refused(&Account::new(), with_key(&server, "nowhere")).await;
    assert!(message.contains("nowhere is not there"), "{message}");
}

/// Case 2.
#[tokio::test]
async fn an_encrypted_key_needs_its_passphrase() {
    let server = Sshd::start();
    make_key_with(&server.file("locked"), KeyKind::Ed25519, "open sesame");
    std::fs::copy(server.file("locked.pub"), server.file("authorized_keys")).unwrap();
    let account = Account::new().set("P", "open sesame").set("WRONG", "close sesame");
    let with = |source: Option<&str>| SshSpec {
        passphrase: source.map(|name| SecretSource::Env(name.to_owned())),
        ..with_key(&server, "locked")
    };
    account.connect(with(Some("P"))).await.unwrap();
    let message = refused(&account, with(None)).await;
    assert!(message.contains("is encrypted: give its `passphrase`"), "{message}");
    let message = refused(&account, with(Some("WRONG"))).await;
    assert!(message.contains("does not open with the `passphrase`"), "{message}");
    let message = refused(&account, with(Some("UNSET"))).await;
    assert!(message.contains("UNSET is not set"), "{message}");
    assert!(!message.contains("sesame"), "{message}");
}

/// Case 2.
#[tokio::test]
async fn a_certificate_beside_the_key_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca");
    make_key(&authority, KeyKind::Ed25519);
    let server = Sshd::builder().config(&format!("TrustedUserCAKeys {}.pub", authority.display())).start();
    make_key(&server.file("signed"), KeyKind::Ed25519);
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    let message = refused(&Account::new(), with_key(&server, "signed")).await;
    assert!(message.contains(&fingerprint(&server.file("signed"))), "{message}");
    certify(&authority, &server.file("signed"), server.user(), false);
    let host = Account::new().connect(with_key(&server, "signed")).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
    assert!(server.log().contains("ED25519-CERT"), "{}", server.log());
    // For another account it is worth nothing.
    std::fs::remove_file(server.file("signed-cert.pub")).unwrap();
    certify(&authority, &server.file("signed"), "somebody-else", false);
    let message = refused(&Account::new(), with_key(&server, "signed")).await;
    assert!(message.contains("signed-cert.pub"), "{message}");
}

/// Section 2: an agent that holds a certificate logs in by it, where the key alone is worth nothing.
#[tokio::test]
async fn a_certificate_in_the_agent_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca");
    make_key(&authority, KeyKind::Ed25519);
    let server = Sshd::builder().config(&format!("TrustedUserCAKeys {}.pub", authority.display())).start();
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    // What signs is chosen otherwise where there are several hashes.
    for (name, kind, said) in [("ed", KeyKind::Ed25519, "ED25519-CERT"), ("rsa", KeyKind::Rsa, "RSA-CERT")] {
        let key = server.file(name);
        make_key(&key, kind);
        let (bare, certified) = (SshAgent::start(), SshAgent::start());
        bare.add(&key);
        certify(&authority, &key, server.user(), false);
        certified.add(&key);
        let spec = SshSpec { key: None, agent: None, ..server.spec() };
        let with = |agent: &SshAgent| Account::new().set("SSH_AUTH_SOCK", agent.socket());
        let message = refused(&with(&bare), spec.clone()).await;
        assert!(message.contains(&fingerprint(&key)), "{message}");
        let host = with(&certified).connect(spec).await.unwrap();
        assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
        assert!(server.log().contains(said), "{}", server.log());
    }
}

/// The hash of `secret word`, for a `shadow` file.
fn hashed() -> String {
    let output =
        std::process::Command::new("openssl").args(["passwd", "-6", "secret word"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Case 2. Needs root: the server sees a `shadow` file of its own.
#[tokio::test]
async fn a_password_works_by_reference_and_after_keys_that_do_not() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let picture = Picture { password: Some(hashed()), ..Picture::default() };
    let server = Sshd::builder().config("PasswordAuthentication yes").account(picture).start();
    make_key(&server.file("useless"), KeyKind::Ed25519);
    let account = Account::new().set("P", "secret word").set("WRONG", "another word");
    let with = |source| SshSpec { password: Some(source), ..with_key(&server, "useless") };
    let file = server.file("password");
    std::fs::write(&file, "secret word\n").unwrap();
    for source in [
        SecretSource::Env("P".to_owned()),
        SecretSource::File(file.display().to_string()),
        SecretSource::Literal("secret word".to_owned()),
    ] {
        let host = account.connect(with(source)).await.unwrap();
        assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
    }
    let message = refused(&account, with(SecretSource::Env("WRONG".to_owned()))).await;
    assert!(message.contains("the password: refused"), "{message}");
    assert!(message.contains(&fingerprint(&server.file("useless"))), "{message}");
    assert!(message.contains("The server offers: publickey, password"), "{message}");
    assert!(!message.contains("another word"), "{message}");
}

/// Section 2: a password also answers what a server asks by keyboard-interactive, alone or after it was given. Needs root:
/// PAM asks, by rules and a `shadow` file of the server's own.
#[tokio::test]
async fn a_password_answers_questions() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let rules =
        "auth required pam_unix.so nodelay\naccount required pam_unix.so\nsession required pam_permit.so\n";
    for (password, more, offers) in [
        ("PasswordAuthentication no", None, "publickey, keyboard-interactive"),
        (
            "PasswordAuthentication yes",
            Some("AuthenticationMethods password,keyboard-interactive"),
            "password",
        ),
    ] {
        let picture = Picture { password: Some(hashed()), pam: Some(rules.to_owned()), ..Picture::default() };
        let mut server = Sshd::builder().config("UsePAM yes").config("KbdInteractiveAuthentication yes");
        for line in [Some(password), more].into_iter().flatten() {
            server = server.config(line);
        }
        let server = server.account(picture).start();
        let account = Account::new().set("P", "secret word").set("WRONG", "another word");
        let with = |name: &str| SshSpec {
            key: None,
            password: Some(SecretSource::Env(name.to_owned())),
            ..server.spec()
        };
        let host = account.connect(with("P")).await;
        let host = host.unwrap_or_else(|error| panic!("{error}\n{}", server.log()));
        assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
        assert!(server.log().contains("Accepted keyboard-interactive/pam"), "{}", server.log());
        let message = refused(&account, with("WRONG")).await;
        assert!(message.contains("the password: refused"), "{message}");
        assert!(message.contains(&format!("The server offers: {offers}")), "{message}");
        assert!(!message.contains("another word"), "{message}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_after_a_few_tries_still_gets_all_of_them() {
    let server = Sshd::builder().config("MaxAuthTries 2").start();
    let agent = SshAgent::start();
    for number in 0..4 {
        let key = server.file(&format!("other{number}"));
        make_key(&key, KeyKind::Ed25519);
        agent.add(&key);
    }
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    let host = account.connect(SshSpec { agent: None, ..server.spec() }).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
}

#[tokio::test]
async fn an_agent_that_is_gone_is_said_and_hides_nothing() {
    let server = Sshd::start();
    let account = Account::new().set("SSH_AUTH_SOCK", server.file("no-agent"));
    account.connect(SshSpec { agent: None, ..server.spec() }).await.unwrap();
    let message = refused(&account, SshSpec { agent: None, key: None, ..server.spec() }).await;
    assert!(message.contains("no-agent does not answer"), "{message}");
}

#[tokio::test]
async fn an_agent_that_says_nothing_hides_nothing() {
    let server = Sshd::start();
    let socket = server.file("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let account = Account::new().set("SSH_AUTH_SOCK", socket);
    account.connect(SshSpec { agent: None, ..server.spec() }).await.unwrap();
}

#[tokio::test]
async fn several_steps_that_a_server_asks_for_are_gone_through() {
    let server = Sshd::builder().config("AuthenticationMethods publickey,publickey").start();
    make_key(&server.file("second"), KeyKind::Ed25519);
    let mut keys = std::fs::read_to_string(server.file("authorized_keys")).unwrap();
    keys.push_str(&std::fs::read_to_string(server.file("second.pub")).unwrap());
    std::fs::write(server.file("authorized_keys"), keys).unwrap();
    let account = Account::new();
    let config = server.file("config");
    std::fs::write(
        &config,
        format!(
            "IdentityFile {}\nIdentityFile {}\n",
            server.file("id").display(),
            server.file("second").display()
        ),
    )
    .unwrap();
    let spec = SshSpec { key: None, ssh_config: Some(config.display().to_string()), ..server.spec() };
    let host = account.connect(spec).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
}

/// Section 2: a server that wants the later ones of our ways first gets the earlier ones afterwards. Needs root: the
/// server sees a `shadow` file of its own.
#[tokio::test]
async fn steps_are_taken_in_the_order_of_the_server() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    for steps in ["password,publickey", "publickey,password"] {
        let picture = Picture { password: Some(hashed()), ..Picture::default() };
        let server = Sshd::builder().config("PasswordAuthentication yes");
        let server = server.config(&format!("AuthenticationMethods {steps}")).account(picture).start();
        let account = Account::new().set("P", "secret word").set("WRONG", "another word");
        let with = |name: &str| SshSpec {
            password: Some(SecretSource::Env(name.to_owned())),
            ..with_key(&server, "id")
        };
        let host = account.connect(with("P")).await.unwrap_or_else(|error| panic!("{steps}: {error}"));
        assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
        let message = refused(&account, with("WRONG")).await;
        assert!(message.contains("the password: refused"), "{steps}: {message}");
    }
}

/// A server that hangs up in the middle of its steps gets those that it took before once more.
#[tokio::test]
async fn steps_begin_again_on_a_new_connection() {
    let server =
        Sshd::builder().config("AuthenticationMethods publickey,publickey").config("MaxAuthTries 2").start();
    let mut config = String::new();
    let mut keys = String::new();
    for name in ["first", "useless1", "useless2", "second"] {
        make_key(&server.file(name), KeyKind::Ed25519);
        config += &format!("IdentityFile {}\n", server.file(name).display());
        if !name.starts_with("useless") {
            keys += &std::fs::read_to_string(server.file(&format!("{name}.pub"))).unwrap();
        }
    }
    std::fs::write(server.file("authorized_keys"), keys).unwrap();
    std::fs::write(server.file("config"), config).unwrap();
    let spec =
        SshSpec { key: None, ssh_config: Some(server.file("config").display().to_string()), ..server.spec() };
    let host = Account::new().connect(spec).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
}

/// Returns where each text begins in `message`; all of them must be there.
fn places(message: &str, texts: &[String]) -> Vec<usize> {
    texts.iter().map(|text| message.find(text).unwrap_or_else(|| panic!("no {text} in {message}"))).collect()
}

/// Section 2: agent keys, then configured identities, then the default ones in their order.
#[tokio::test]
async fn keys_are_tried_in_the_order_of_the_contract() {
    let server = Sshd::builder().config("MaxAuthTries 20").start();
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    let agent = SshAgent::start();
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    let home = account.home.path().join(".ssh");
    let kinds = [("id_ed25519", KeyKind::Ed25519), ("id_ecdsa", KeyKind::Ecdsa), ("id_rsa", KeyKind::Rsa)];
    for (name, kind) in kinds {
        make_key(&home.join(name), kind);
    }
    for name in ["of-agent", "configured"] {
        make_key(&server.file(name), KeyKind::Ed25519);
    }
    agent.add(&server.file("of-agent"));
    let config = server.file("config");
    std::fs::write(&config, format!("IdentityFile {}\n", server.file("configured").display())).unwrap();
    let spec =
        SshSpec { key: None, agent: None, ssh_config: Some(config.display().to_string()), ..server.spec() };
    let message = refused(&account, spec.clone()).await;
    let mut order = vec![fingerprint(&server.file("of-agent")), fingerprint(&server.file("configured"))];
    order.extend(kinds.map(|(name, _)| fingerprint(&home.join(name))));
    let found = places(&message, &order);
    assert!(found.is_sorted(), "{found:?} in {message}");
    // With `key` there are no others but the agent's.
    let message =
        refused(&account, SshSpec { key: Some(server.file("configured").display().to_string()), ..spec })
            .await;
    assert_eq!(places(&message, &order[..2]).len(), 2);
    assert!(order[2..].iter().all(|key| !message.contains(key)), "{message}");
}

/// Section 2: `IdentitiesOnly` leaves of the agent's keys only those that are configured, and no default ones.
#[tokio::test]
async fn identities_only_leaves_out_what_is_not_configured() {
    let server = Sshd::start();
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    let agent = SshAgent::start();
    for name in ["wanted", "stray"] {
        make_key(&server.file(name), KeyKind::Ed25519);
        agent.add(&server.file(name));
    }
    // The agent alone has it: what is here is the half that anybody may see.
    std::fs::remove_file(server.file("wanted")).unwrap();
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    make_key(&account.home.path().join(".ssh/id_ed25519"), KeyKind::Ed25519);
    let config = server.file("config");
    let text = format!("IdentitiesOnly yes\nIdentityFile {}\n", server.file("wanted").display());
    std::fs::write(&config, text).unwrap();
    let spec =
        SshSpec { key: None, agent: None, ssh_config: Some(config.display().to_string()), ..server.spec() };
    let message = refused(&account, spec.clone()).await;
    let print = |name: &str| fingerprint(&server.file(&format!("{name}.pub")));
    assert!(message.contains(&print("wanted")) && !message.contains(&print("stray")), "{message}");
    assert!(!message.contains(&fingerprint(&account.home.path().join(".ssh/id_ed25519"))), "{message}");
    std::fs::copy(server.file("wanted.pub"), server.file("authorized_keys")).unwrap();
    let host = account.connect(spec).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
}

/// Section 2: `IdentityAgent` says which agent is asked, and `CertificateFile` which certificate goes with a key.
#[tokio::test]
async fn the_agent_and_the_certificate_that_ssh_config_names_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca");
    make_key(&authority, KeyKind::Ed25519);
    let server = Sshd::builder().config(&format!("TrustedUserCAKeys {}.pub", authority.display())).start();
    let (named, other) = (SshAgent::start(), SshAgent::start());
    named.add(&server.file("id"));
    let account = Account::new().set("SSH_AUTH_SOCK", other.socket());
    let config = server.file("config");
    let spec =
        SshSpec { key: None, agent: None, ssh_config: Some(config.display().to_string()), ..server.spec() };
    std::fs::write(&config, "").unwrap();
    refused(&account, spec.clone()).await;
    std::fs::write(&config, format!("IdentityAgent {}\n", named.socket().display())).unwrap();
    account.connect(spec.clone()).await.unwrap();

    let key = server.file("signed");
    make_key(&key, KeyKind::Ed25519);
    certify(&authority, &key, server.user(), false);
    // Not beside the key, where it would be found anyway.
    let elsewhere = directory.path().join("certificate");
    std::fs::rename(server.file("signed-cert.pub"), &elsewhere).unwrap();
    let identity = format!("IdentityAgent none\nIdentityFile {}\n", key.display());
    std::fs::write(&config, &identity).unwrap();
    refused(&account, spec.clone()).await;
    std::fs::write(&config, format!("{identity}CertificateFile {}\n", elsewhere.display())).unwrap();
    account.connect(spec).await.unwrap();
    assert!(server.log().contains("ED25519-CERT"), "{}", server.log());
}

/// Section 2: a public key stands for the agent's key, and a certificate of a file for a key that only the agent has.
#[tokio::test]
async fn a_public_key_and_a_certificate_stand_for_a_key_of_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca");
    make_key(&authority, KeyKind::Ed25519);
    let server = Sshd::builder().config(&format!("TrustedUserCAKeys {}.pub", authority.display())).start();
    let agent = SshAgent::start();
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    for name in ["wanted", "stray", "gone"] {
        make_key(&server.file(name), KeyKind::Ed25519);
    }
    for name in ["wanted", "stray"] {
        agent.add(&server.file(name));
        std::fs::remove_file(server.file(name)).unwrap();
    }
    let config = server.file("config");
    let spec =
        SshSpec { key: None, agent: None, ssh_config: Some(config.display().to_string()), ..server.spec() };
    let identity = |name: &str| format!("IdentitiesOnly yes\nIdentityFile {}\n", server.file(name).display());
    let print = |name: &str| fingerprint(&server.file(name));
    std::fs::write(&config, identity("wanted.pub")).unwrap();
    let message = refused(&account, spec.clone()).await;
    assert!(message.contains(&print("wanted.pub")) && !message.contains(&print("stray.pub")), "{message}");
    std::fs::write(&config, identity("gone.pub")).unwrap();
    let message = refused(&account, spec.clone()).await;
    assert!(message.contains("gone.pub is a public key, and no agent has the private one"), "{message}");
    std::fs::copy(server.file("wanted.pub"), server.file("authorized_keys")).unwrap();
    std::fs::write(&config, identity("wanted.pub")).unwrap();
    account.connect(spec.clone()).await.unwrap();
    account.connect(SshSpec { agent: None, ..with_key(&server, "wanted.pub") }).await.unwrap();

    // By its certificate alone; what signs is chosen otherwise where there are several hashes.
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    for (name, kind, said) in [("ed", KeyKind::Ed25519, "ED25519-CERT"), ("rsa", KeyKind::Rsa, "RSA-CERT")] {
        let key = server.file(name);
        make_key(&key, kind);
        let agent = SshAgent::start();
        agent.add(&key);
        let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
        certify(&authority, &key, server.user(), false);
        std::fs::remove_file(&key).unwrap();
        let elsewhere = directory.path().join(name);
        std::fs::rename(server.file(&format!("{name}-cert.pub")), &elsewhere).unwrap();
        std::fs::write(&config, "").unwrap();
        refused(&account, spec.clone()).await;
        std::fs::write(&config, format!("CertificateFile {}\n", elsewhere.display())).unwrap();
        let host = account.connect(spec.clone()).await;
        host.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(server.log().contains(said), "{}", server.log());
        // Beside the public key it is found.
        std::fs::rename(&elsewhere, server.file(&format!("{name}-cert.pub"))).unwrap();
        std::fs::write(&config, identity(&format!("{name}.pub"))).unwrap();
        account.connect(spec.clone()).await.unwrap();
    }
}

/// Section 2: what the account has is read once per run: a certificate that goes and an agent that gets a key
/// change nothing.
#[tokio::test]
async fn keys_and_agents_are_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca");
    make_key(&authority, KeyKind::Ed25519);
    let server = Sshd::builder().config(&format!("TrustedUserCAKeys {}.pub", authority.display())).start();
    std::fs::write(server.file("authorized_keys"), "").unwrap();
    make_key(&server.file("signed"), KeyKind::Ed25519);
    certify(&authority, &server.file("signed"), server.user(), false);
    let account = Account::new();
    let run = account.transports();
    let spec = TransportSpec::Ssh(Box::new(with_key(&server, "signed")));
    run.connect(&spec).await.unwrap();
    std::fs::remove_file(server.file("signed-cert.pub")).unwrap();
    run.connect(&spec).await.unwrap();
    assert!(account.transports().connect(&spec).await.is_err(), "another run sees that it is gone");

    let server = Sshd::start();
    let agent = SshAgent::start();
    let account = Account::new().set("SSH_AUTH_SOCK", agent.socket());
    let run = account.transports();
    let spec = TransportSpec::Ssh(Box::new(SshSpec { key: None, agent: None, ..server.spec() }));
    assert!(run.connect(&spec).await.is_err(), "the agent has no key yet");
    agent.add(&server.file("id"));
    assert!(run.connect(&spec).await.is_err(), "its list is known already");
    account.transports().connect(&spec).await.unwrap();
}
