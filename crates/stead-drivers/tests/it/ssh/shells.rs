//! Login shells of all kinds, and what their start-up files print. Case 9's half of the transport.

use super::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use stead_runner::transport::{FileMeta, Signal, Source, Stdin, TransportErrorKind};
use stead_testkit::sshd::Account as Picture;

fn with_shell(shell: &str) -> stead_testkit::sshd::Builder {
    Sshd::builder().account(Picture { shell: Some(shell.to_owned()), ..Picture::default() })
}

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root, for a passwd file of the server's own");
    }
    root
}

/// Section 2: argv, environment and input byte for byte, whatever the login shell.
#[tokio::test]
async fn bytes_pass_every_login_shell() {
    if !is_root() {
        return;
    }
    let all: Vec<u8> = (1..=255).collect();
    for shell in ["/bin/bash", "/bin/dash", "/usr/bin/zsh", "/usr/bin/fish", "/bin/csh"] {
        if !std::path::Path::new(shell).exists() {
            println!("skipped: {shell} is not installed");
            continue;
        }
        let server = with_shell(shell).start();
        let host = connect(&server).await;
        // Also if somebody watches the command.
        for tied in [None, Some(Duration::from_secs(60))] {
            let words = ["", "a b", "it's", "$(x) `id` $HOME", "~", "!x", "\\", "a\nb\n", "*", "%s", "-n"];
            let mut command = Command::new(["printf", "%s\\0"]);
            command.tied = tied;
            command.argv.extend(words.iter().map(OsString::from));
            command.argv.push(OsString::from_vec(all.clone()));
            let (output, _) = bytes(host.exec(command).await.unwrap()).await;
            let mut expected: Vec<u8> =
                words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
            expected.extend(&all);
            expected.push(0);
            assert_eq!(output, expected, "{shell}");
            let mut command = Command::new(["sh", "-c", "printf '%s|' \"$STEAD_VALUE\"; cat; exit 7"]);
            command.tied = tied;
            command.env.insert("STEAD_VALUE".into(), OsString::from_vec(all.clone()));
            command.stdin = Stdin::Bytes(b"input\n".to_vec());
            let ended = bytes(host.exec(command).await.unwrap()).await;
            assert_eq!(ended, ([&all[..], b"|input\n"].concat(), Exit::Code(7)), "{shell}");
        }
        // The login shell, whichever it is, does not keep what watches from hearing the end.
        let mut command = Command::new(["sh", "-c", "echo $$; exec sleep 600"]);
        command.tied = Some(Duration::from_secs(60));
        let mut running = host.exec(command).await.unwrap();
        running.stdout.read_u8().await.unwrap();
        server.drop_connections();
        super::faults::until_idle(&server).await;
    }
}

/// Returns the output as it came, and how the program ended.
async fn bytes(mut running: Running) -> (Vec<u8>, Exit) {
    let mut output = Vec::new();
    running.stdout.read_to_end(&mut output).await.unwrap();
    (output, running.process.wait().await.unwrap())
}

/// Section 2: no process list shows an environment value or input.
#[tokio::test]
async fn no_process_shows_an_environment_value_or_input_in_its_arguments() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let mut command =
        Command::new(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat >/dev/null"]);
    command.env.insert("STEAD_VALUE".into(), "value-4711-unseen".into());
    command.stdin = Stdin::Bytes(b"input-4711-unseen".to_vec());
    let finished = finish(host.exec(command).await.unwrap()).await.unwrap();
    assert!(finished.stdout.contains("sshd") && !finished.stdout.contains("4711-unseen"));
}

/// Case 9.
#[tokio::test]
async fn ten_kibibytes_from_bashrc_are_left_out_with_a_warning() {
    if !is_root() {
        return;
    }
    let server = with_shell("/bin/bash").start();
    let noise = "for i in $(seq 160); do printf '%063d\\n' $i; done; echo complaint >&2\n";
    std::fs::write(server.home().join(".bashrc"), noise).unwrap();
    let account = Account::new();
    let host = account.connect(server.spec()).await.unwrap();
    for _ in 0..2 {
        let finished = run(&*host, &["sh", "-c", "echo out; echo err >&2"]).await.unwrap();
        assert_eq!(
            finished,
            Finished { exit: Exit::Code(0), stdout: "out\n".into(), stderr: "err\n".into() }
        );
    }
    let said = account.noticed("reach/noise");
    assert_eq!(said.len(), 1, "once per host: {said:?}");
    assert!(said[0].contains("127.0.0.1"), "{said:?}");
    // More than 64 KiB is no banner.
    std::fs::write(server.home().join(".bashrc"), "head -c 100000 /dev/zero\n").unwrap();
    let error = host.exec(Command::new(["true"])).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Failed);
    assert!(error.message.contains("more than 65536 bytes"), "{error}");
}

#[tokio::test]
async fn an_account_without_a_shell_says_so() {
    if !is_root() {
        return;
    }
    let server = with_shell("/usr/sbin/nologin").start();
    let host = connect(&server).await;
    let error = host.exec(Command::new(["true"])).await.err().unwrap();
    assert_eq!(error.kind, TransportErrorKind::Failed);
    assert!(
        error.message.contains("ended with code 1") && error.message.contains("not available"),
        "{error}"
    );
}

/// For an account that is not root the server itself signals the group.
#[tokio::test]
async fn an_ordinary_account_is_signalled_and_gets_files() {
    if !is_root() {
        return;
    }
    let picture = Picture {
        user: Some("daemon".to_owned()),
        shell: Some("/bin/sh".to_owned()),
        password: Some("*".to_owned()),
        ..Picture::default()
    };
    let server = Sshd::builder().account(picture).start();
    let host = connect(&server).await;
    assert_eq!(output(&*host, &["id", "-un"]).await, "daemon\n");
    for (signal, number) in [(Signal::Terminate, 15), (Signal::Kill, 9)] {
        let mut running = host.exec(Command::new(["sh", "-c", "sleep 600 & echo up; wait"])).await.unwrap();
        let mut up = [0; 3];
        running.stdout.read_exact(&mut up).await.unwrap();
        running.process.signal(signal).await.unwrap();
        assert_eq!(running.process.wait().await.unwrap(), Exit::Signal(number));
        // The child had the output open: its end is the child's.
        running.stdout.read_to_end(&mut Vec::new()).await.unwrap();
    }
    host.put(Source::Bytes(b"x"[..].into()), &server.workdir().join("file"), FileMeta::default())
        .await
        .unwrap();
    let meta = FileMeta { owner: Some("root".to_owned()), ..FileMeta::default() };
    let put = host.put(Source::Bytes(b"y"[..].into()), &server.workdir().join("other"), meta).await;
    let error = put.unwrap_err();
    assert!(error.message.contains("its owner cannot be set"), "{error}");
    assert_eq!(std::fs::read_dir(server.workdir()).unwrap().count(), 1);
}
