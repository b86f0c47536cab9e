//! The server of a sandbox, measured by OpenSSH's own client.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use stead_runner::machine::MachineDriver;
use stead_runner::socket::SocketPath;
use stead_testkit::sshd::free_port;

use super::yard::{Place, processes_of, until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Section 7 of nodes: commands start in the root, with the variables and the name of the node.
#[tokio::test]
async fn a_command_finds_itself_in_its_node() {
    let place = Place::new();
    let machine = place.start("quay").await;
    let root = place.home(&machine.owner).join("root");
    let said =
        place.run(&machine, "pwd; hostname; echo \"$HOME|$STEAD_ROOT|$STEAD_NODE|$USER\"; hostname -f");
    let home = root.join("home/stead");
    assert_eq!(
        text(&said.stdout),
        format!("{0}\nquay\n{1}|{0}|quay|stead\nquay\n", root.display(), home.display()),
        "{}",
        text(&said.stderr)
    );
    fs::write(root.join("etc/hostname"), "pier\n").unwrap();
    fs::write(root.join("etc/hosts"), "127.0.1.1 pier.lab.example pier\n").unwrap();
    assert_eq!(
        text(&place.run(&machine, "hostname; hostname -f; hostname -d").stdout),
        "pier\npier.lab.example\nlab.example\n"
    );
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

#[tokio::test]
async fn streams_codes_and_signals_are_exact() {
    let place = Place::new();
    let machine = place.start("exact").await;
    for code in [0, 1, 126, 255] {
        assert_eq!(place.run(&machine, &format!("exit {code}")).status.code(), Some(code));
    }
    let said = place.run(&machine, "echo out; echo err >&2; exit 3");
    assert_eq!(
        (text(&said.stdout), text(&said.stderr), said.status.code()),
        ("out\n".into(), "err\n".into(), Some(3))
    );
    // What ended it by a signal, the client says as 255 or by the signal's own number.
    let said = place.run(&machine, "kill -TERM $$; sleep 60");
    assert!(!said.status.success() && said.status.signal().is_none(), "{said:?}");
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let mut client = place
        .ssh(&machine, "stead", "id")
        .arg("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, sent) = (client.stdin.take().unwrap(), bytes.clone());
    let writing = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut back = Vec::new();
    client.stdout.take().unwrap().read_to_end(&mut back).unwrap();
    writing.join().unwrap();
    assert!(client.wait().unwrap().success() && back == bytes, "{} bytes came back", back.len());
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

#[tokio::test]
async fn only_keys_of_the_account_open_it() {
    let place = Place::new();
    let machine = place.start("keys").await;
    let root = place.home(&machine.owner).join("root");
    let enters = |user: &str, key: &str| {
        let said = place.ssh(&machine, user, key).arg("true").output().unwrap();
        said.status.success()
    };
    assert!(enters("stead", "id"));
    assert!(!enters("stead", "stranger"), "a key that nobody planted");
    assert!(!enters("root", "id"), "the driver's key opens its own account alone");
    assert!(!enters("nobody", "id") && !enters("../stead", "id"), "accounts that are not there");
    fs::create_dir_all(root.join("root/.ssh")).unwrap();
    fs::copy(place.path("stranger.pub"), root.join("root/.ssh/authorized_keys")).unwrap();
    assert!(enters("root", "stranger"), "keys are read as they are now");
    // A link that leads out of the machine leads nowhere.
    fs::remove_file(root.join("root/.ssh/authorized_keys")).unwrap();
    std::os::unix::fs::symlink(place.path("stranger.pub"), root.join("root/.ssh/authorized_keys")).unwrap();
    assert!(!enters("root", "stranger"));
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

/// Sockets of the machine are reached; those of the machine it runs on are not.
#[tokio::test]
async fn only_sockets_of_the_machine_are_reached() {
    let place = Place::new();
    let machine = place.start("sockets").await;
    let root = place.home(&machine.owner).join("root");
    for (number, (socket, asked, answers)) in [
        (root.join("run/own"), "/run/own".to_owned(), true),
        (root.join("run/own"), root.join("run/own").display().to_string(), true),
        (place.path("outside"), place.path("outside").display().to_string(), false),
    ]
    .into_iter()
    .enumerate()
    {
        fs::remove_file(&socket).ok();
        let listener = UnixListener::bind(SocketPath::new(&socket).unwrap().path()).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                stream.write_all(b"hello").unwrap();
            }
        });
        let here = place.path(&format!("here{number}"));
        let mut client = place.ssh(&machine, "stead", "id");
        client.args(["-N", "-L", &format!("{}:{asked}", here.display())]).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        // Its file is there a moment before it listens.
        until("it listens", || UnixStream::connect(SocketPath::new(&here).unwrap().path()).is_ok());
        let mut said = Vec::new();
        UnixStream::connect(SocketPath::new(&here).unwrap().path()).unwrap().read_to_end(&mut said).ok();
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!(said == b"hello", answers, "{asked}");
    }
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

/// `direct-tcpip`, by which jumps go.
#[tokio::test]
async fn connections_are_carried_into_the_machine() {
    let place = Place::new();
    let (machine, other) = (place.start("hub").await, place.start("spoke").await);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(&said.map(|byte| byte.to_ascii_uppercase())).unwrap();
    });
    let mut client = place
        .ssh(&machine, "stead", "id")
        .args(["-W", &to])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    client.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HELLO");
    drop(client.stdin.take());
    client.wait().unwrap();
    serving.join().unwrap();
    // The other way: a port of the machine leads to one of the client's.
    let (inside, outside) = (free_port(), TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let back = format!("{inside}:127.0.0.1:{}", outside.local_addr().unwrap().port());
    let mut client =
        place.ssh(&machine, "stead", "id").args(["-R", &back, "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    until("it listens", || TcpStream::connect(("127.0.0.1", inside)).is_ok());
    assert!(outside.accept().is_ok(), "what came in there comes out here");
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
    let nobody = place.ssh(&machine, "stead", "id").args(["-W", "127.0.0.1:1"]).output().unwrap();
    assert!(!nobody.status.success());
    // Through one machine into the next.
    let hub = machine.ssh.as_ref().unwrap();
    let proxy = format!(
        "ProxyCommand=ssh -F none -i {0} -o UserKnownHostsFile={1} -o IdentitiesOnly=yes -p {2} -W %h:%p stead@127.0.0.1",
        place.path("id").display(),
        place.path("known_hosts").display(),
        hub.port
    );
    let said = place.ssh(&other, "stead", "id").args(["-o", &proxy]).arg("hostname").output().unwrap();
    assert_eq!(text(&said.stdout), "spoke\n", "{}", text(&said.stderr));
    for machine in [machine, other] {
        place.sandboxes().destroy(&machine.id).await.unwrap();
    }
}

/// Everything started in a sandbox goes with it, also what left its session and forgot its environment.
#[tokio::test]
async fn what_runs_in_a_sandbox_ends_with_it() {
    let place = Place::new();
    let machine = place.start("tree").await;
    let file = place.path("pids");
    let line = format!(
        "setsid sh -c 'echo $$ >>{0}; exec sleep 600' </dev/null >/dev/null 2>&1 & \
         setsid env -i /bin/sh -c 'echo $$ >>{0}; exec sleep 600' </dev/null >/dev/null 2>&1 & echo ok",
        file.display()
    );
    assert_eq!(text(&place.run(&machine, &line).stdout), "ok\n");
    let pids = || -> Vec<u32> {
        fs::read_to_string(&file).unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect()
    };
    until("both run", || pids().len() == 2);
    place.sandboxes().stop(&machine.id, std::time::Duration::from_secs(20)).await.unwrap();
    assert!(
        pids().into_iter().all(|pid| !super::yard::is_alive(pid)),
        "{:?}",
        processes_of(&place.root_dir())
    );
    place.sandboxes().destroy(&machine.id).await.unwrap();
}
