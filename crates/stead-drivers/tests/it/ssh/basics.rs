//! Connecting and running.

use super::*;
use stead_runner::transport::TransportErrorKind;

#[tokio::test]
async fn a_command_runs_with_its_output_and_exit_code() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let finished = run(&*host, &["sh", "-c", "echo out; echo err >&2; exit 3"]).await.unwrap();
    assert_eq!(finished, Finished { exit: Exit::Code(3), stdout: "out\n".into(), stderr: "err\n".into() });
}

#[tokio::test]
async fn many_commands_share_one_connection() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let mut all = tokio::task::JoinSet::new();
    for number in 0..20 {
        let host = Arc::clone(&host);
        all.spawn(async move { output(&*host, &["echo", &number.to_string()]).await });
    }
    let mut said = all.join_all().await;
    said.sort();
    assert_eq!(said.len(), 20);
    assert_eq!(server.logins(), 1, "{}", server.log());
}

/// Section 11: every fixture is a target of its own.
#[tokio::test]
async fn a_fixture_has_its_own_home() {
    let server = Sshd::start();
    let host = connect(&server).await;
    assert_eq!(output(&*host, &["printenv", "HOME"]).await.trim(), server.home().display().to_string());
    let parsed = TransportSpec::parse(&server.spec_text()).unwrap();
    assert_eq!(parsed, TransportSpec::Ssh(Box::new(server.spec())));
    Account::new().transports().connect(&parsed).await.unwrap();
}

/// Section 2: a host may be an IPv6 address, in brackets or bare.
#[tokio::test]
async fn a_host_of_version_six_is_reached() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    let server = Sshd::builder().config("ListenAddress ::1").start();
    let known = std::fs::read_to_string(server.file("known_hosts")).unwrap();
    let (user, port, place) = (server.user(), server.port(), server.path().display());
    let files = format!("key={place}/id&known_hosts={place}/known_hosts&agent=false&ssh_config=none");
    let full = TransportSpec::parse(&format!("ssh://{user}@[::1]:{port}?{files}")).unwrap();
    // It is known by its own name only.
    let unknown = Account::new().transports().connect(&full).await.err().unwrap();
    assert_eq!(unknown.kind, TransportErrorKind::HostKey, "{unknown}");
    assert!(unknown.message.contains(&format!("[::1]:{port}")), "{unknown}");
    std::fs::write(server.file("known_hosts"), known.replace("127.0.0.1", "::1")).unwrap();
    let host = Account::new().transports().connect(&full).await.unwrap();
    assert_eq!(output(&*host, &["sh", "-c", "echo ${SSH_CONNECTION%% *}"]).await, "::1\n");
    let config = server.file("config");
    let lines = [
        "Host ::1".to_owned(),
        format!("Port {port}"),
        format!("IdentityFile {place}/id"),
        format!("UserKnownHostsFile {place}/known_hosts"),
    ];
    std::fs::write(&config, lines.join("\n")).unwrap();
    let bare = TransportSpec::parse(&format!("{user}@::1?agent=false&ssh_config={place}/config")).unwrap();
    let host = Account::new().transports().connect(&bare).await.unwrap();
    assert_eq!(output(&*host, &["echo", "in"]).await, "in\n");
}

/// Section 2: what ends by a signal ends so here too; one that SSH has no name for is an error that says so.
#[tokio::test]
async fn the_signal_that_ends_a_program_is_told_as_far_as_ssh_names_it() {
    let server = Sshd::start();
    let host = connect(&server).await;
    for (name, number) in [("ABRT", 6), ("SEGV", 11), ("USR2", 12)] {
        let finished = run(&*host, &["sh", "-c", &format!("kill -{name} $$")]).await.unwrap();
        assert_eq!(finished.exit, Exit::Signal(number), "{name}");
    }
    let error = run(&*host, &["sh", "-c", "kill -BUS $$"]).await.unwrap_err();
    assert_eq!(error.message, "the program was ended by a signal that the SSH server does not name");
    assert_eq!(output(&*host, &["echo", "on"]).await, "on\n", "the connection is good for more");
}

/// Section 2: a variable that no shell can set is refused before anything is started, as on this machine.
#[tokio::test]
async fn a_variable_that_no_shell_can_set_is_refused() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let here = Account::new().transports().connect(&TransportSpec::Local).await.unwrap();
    for name in ["a.b", "1A", "A-B", "", "A=B", "\u{e4}"] {
        for transport in [&host, &here] {
            let mut command = Command::new(["touch", "started"]);
            command.cwd = Some(server.workdir());
            command.env.insert(name.into(), "x".into());
            let error = transport.exec(command).await.err().unwrap();
            assert_eq!(error.kind, TransportErrorKind::Invalid, "{name}");
            assert!(error.message.contains(&format!("{name:?} cannot be set")), "{error}");
        }
    }
    assert!(!server.workdir().join("started").exists());
}
