//! Cases 5 and 6: servers that are full, silent, stopped or gone.

use super::*;
use std::time::{Duration, Instant};

use stead_model::ErrorClass;
use stead_runner::transport::{Signal, TransportErrorKind};
use stead_testkit::sshd::free_port;
use tokio::task::JoinSet;

/// Case 5.
#[tokio::test]
async fn twenty_commands_pass_a_server_with_two_places() {
    let server = Sshd::builder().config("MaxSessions 2").start();
    let host = connect(&server).await;
    let mut all = JoinSet::new();
    for number in 0..20 {
        let host = Arc::clone(&host);
        all.spawn(async move { output(&*host, &["sh", "-c", &format!("sleep 0.02; echo {number}")]).await });
    }
    let mut said: Vec<u32> = all.join_all().await.iter().map(|line| line.trim().parse().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, (0..20).collect::<Vec<_>>());
    assert_eq!(server.logins(), 1, "over one connection");
}

#[tokio::test]
async fn programs_that_fill_the_server_can_still_be_signalled() {
    let server = Sshd::builder().config("MaxSessions 2").start();
    let host = connect(&server).await;
    let mut one = host.exec(Command::new(["sleep", "600"])).await.unwrap();
    let other = host.exec(Command::new(["sleep", "600"])).await.unwrap();
    one.process.signal(Signal::Terminate).await.unwrap();
    assert_eq!(one.process.wait().await.unwrap(), Exit::Signal(15));
    drop(other);
    until_idle(&server).await;
}

#[tokio::test]
async fn a_server_without_any_place_is_an_error() {
    let server = Sshd::builder().config("MaxSessions 0").start();
    let host = connect(&server).await;
    let error = host.exec(Command::new(["true"])).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Failed);
    assert!(error.message.contains("MaxSessions"), "{error}");
}

/// Case 5.
#[tokio::test]
async fn twenty_runs_at_once_pass_a_server_that_takes_two_logins() {
    let server = Sshd::builder().config("MaxStartups 2:100:2").start();
    let mut all = JoinSet::new();
    for _ in 0..20 {
        // They take turns: the last one waits for all others.
        let spec = SshSpec { connect_timeout: Some(Duration::from_secs(150)), ..server.spec() };
        all.spawn(async move { Account::new().connect(spec).await.map(drop) });
    }
    for result in all.join_all().await {
        result.unwrap();
    }
    assert!(server.log().contains("MaxStartups"), "no login was ever refused: {}", server.log());
}

/// Connects to what never answers, and checks when and how that fails.
async fn times_out(spec: SshSpec) -> String {
    let limit = Duration::from_secs(2);
    let begin = Instant::now();
    let error = Account::new().connect(SshSpec { connect_timeout: Some(limit), ..spec }).await.err().unwrap();
    let took = begin.elapsed();
    // How late it is noticed depends on who else is busy; less than the 30 s of those who name no limit.
    assert!(took >= limit && took < Duration::from_secs(25), "{took:?}");
    assert_eq!(error.kind, TransportErrorKind::TimedOut, "{error}");
    assert_eq!(error.class(), ErrorClass::Unreachable);
    assert!(error.may_pass());
    error.message
}

/// Case 6. A listener with a full queue drops what comes, as a black hole does.
#[tokio::test]
async fn a_black_hole_is_unreachable_at_the_connect_timeout() {
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = std::net::TcpListener::from(listener);
    let port = address.local_addr().unwrap().port();
    // The queue of length zero still takes one or two.
    let mut held = Vec::new();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        held.push(stream);
    }
    let spec = SshSpec {
        host: "127.0.0.1".to_owned(),
        port: Some(port),
        ssh_config: Some("none".to_owned()),
        ..SshSpec::default()
    };
    let message = times_out(spec).await;
    assert!(message.contains("connecting to 127.0.0.1"), "{message}");
}

#[tokio::test]
async fn a_server_that_says_nothing_or_hangs_up_is_unreachable_at_the_connect_timeout() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let spec = SshSpec {
        host: "127.0.0.1".to_owned(),
        port: Some(port),
        ssh_config: Some("none".to_owned()),
        ..SshSpec::default()
    };
    let message = times_out(spec.clone()).await;
    assert!(message.contains("did not finish the key exchange"), "{message}");
    let mut server = JoinSet::new();
    server.spawn(async move { while listener.accept().await.is_ok() {} });
    let message = times_out(spec).await;
    assert!(message.contains("MaxStartups"), "{message}");
}

#[tokio::test]
async fn a_refused_connection_and_an_unknown_name_are_told_apart() {
    let spec = SshSpec {
        host: "127.0.0.1".to_owned(),
        port: Some(free_port()),
        ssh_config: Some("none".to_owned()),
        ..SshSpec::default()
    };
    let error = Account::new().connect(spec.clone()).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Refused, "{error}");
    assert!(error.may_pass());
    let error = Account::new()
        .connect(SshSpec { host: "no-such-host.invalid".to_owned(), ..spec })
        .await
        .err()
        .unwrap();
    assert_eq!(error.kind, TransportErrorKind::NameNotFound, "{error}");
    assert!(error.message.contains("no-such-host.invalid") && error.may_pass(), "{error}");
}

/// Case 6.
#[tokio::test]
async fn a_stopped_server_is_lost_after_three_keepalives() {
    let server = Sshd::start();
    // A server that is only slow answers within three of them.
    let interval = Duration::from_secs(2);
    let host = Account::new().connect(SshSpec { keepalive: Some(interval), ..server.spec() }).await.unwrap();
    let mut running = host.exec(Command::new(["sleep", "600"])).await.unwrap();
    server.stop();
    let begin = Instant::now();
    let error = running.process.wait().await.unwrap_err();
    let took = begin.elapsed();
    server.cont();
    assert_eq!(error.kind, TransportErrorKind::Lost, "{error}");
    assert_eq!(error.class(), ErrorClass::Unreachable);
    assert!(error.message.contains("answers no keepalive"), "{error}");
    // One may have been on its way when the server stopped.
    assert!(took >= interval * 2 && took < interval * 12, "{took:?}");
    let error = host.exec(Command::new(["true"])).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_connection_that_ends_under_a_command_is_lost_and_keeps_its_output() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let mut running = host.exec(Command::new(["sh", "-c", "echo first; sleep 600"])).await.unwrap();
    let mut first = [0; 6];
    running.stdout.read_exact(&mut first).await.unwrap();
    server.drop_connections();
    let error = running.process.wait().await.unwrap_err();
    assert_eq!(error.kind, TransportErrorKind::Lost, "{error}");
    let mut rest = Vec::new();
    assert!(running.stdout.read_to_end(&mut rest).await.is_err(), "a cut output is not an ended one");
}

/// Waits until `server` has as many connections as said.
async fn until_connections(server: &Sshd, count: usize) {
    for _ in 0..6000 {
        if server.connections() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} connections, not {count}", server.connections());
}

#[tokio::test]
async fn dropping_a_transport_ends_its_connection_but_not_under_a_program() {
    let server = Sshd::start();
    until_connections(&server, 0).await;
    let host = connect(&server).await;
    until_connections(&server, 1).await;
    let mut running = host.exec(Command::new(["sh", "-c", "read -r line; echo end"])).await.unwrap();
    drop(host);
    assert_eq!(running.process.wait().await.unwrap(), Exit::Code(0), "the program keeps its connection");
    drop(running);
    until_connections(&server, 0).await;
}

#[tokio::test]
async fn giving_up_a_connection_leaves_no_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let spec = SshSpec {
        host: "127.0.0.1".to_owned(),
        port: Some(port),
        ssh_config: Some("none".to_owned()),
        ..SshSpec::default()
    };
    let account = Account::new();
    let connecting = account.connect(spec);
    // A server that says who it is and then nothing.
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-silent\r\n").await.unwrap();
        let mut said = vec![0; 512];
        while stream.read(&mut said).await.unwrap() < 100 {}
        stream
    };
    let mut stream = tokio::select! {
        _ = connecting => panic!("it cannot be connected"),
        stream = server => stream,
    };
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the socket outlives its connection attempt");
}

#[tokio::test]
async fn giving_up_a_start_leaves_no_program() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let mark = server.file("mark");
    for pause in [0, 1, 3, 10, 30] {
        let mut command = Command::new(["sh", "-c", "echo $$ >>\"$1\"; exec sleep 600", "sh"]);
        command.argv.push(mark.clone().into());
        drop(tokio::time::timeout(Duration::from_millis(pause), host.exec(command)).await);
    }
    let alive = || {
        let text = std::fs::read_to_string(&mark).unwrap_or_default();
        text.lines().any(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("600"))
        })
    };
    until_idle(&server).await;
    assert!(!alive());
}

/// Waits until nothing runs in any session.
pub(super) async fn until_idle(server: &Sshd) {
    for _ in 0..6000 {
        if server_is_idle(server) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a program goes on");
}

/// Whether no session of the server runs anything.
fn server_is_idle(server: &Sshd) -> bool {
    let mark = format!("STEAD_SSHD={}", server.path().display());
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    !processes.into_iter().any(|entry| {
        std::fs::read(entry.path().join("environ"))
            .is_ok_and(|bytes| bytes.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
    })
}
