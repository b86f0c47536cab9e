//! Connecting and running.

use super::*;

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
