//! Promises about files and forwards.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use stead_model::ErrorClass;
use stead_model::plan::Digest;
use stead_runner::socket::SocketPath;
use stead_runner::transport::{Endpoint, FileMeta, Forward, Source, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::tree::{Depth, snapshot};

fn bytes(content: &[u8]) -> Source {
    Source::Bytes(Arc::from(content))
}

pub(super) async fn files_go_there_and_back(transport: &dyn Transport, directory: &Path) {
    let place = directory.join("files");
    fs::create_dir(&place).expect("a directory");
    // Larger than a window, and above the size at which hashing is done on the way.
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| ((number * 7) >> 3) as u8).collect();
    for (name, content) in [
        ("empty", &b""[..]),
        ("small", b"one\ntwo"),
        ("odd 'name'\n$(x)", b"\0\xff\r\n"),
        ("-n", b"x"),
        ("large", &large),
    ] {
        let there = place.join(name);
        let digest = transport.put(bytes(content), &there, FileMeta::default()).await.expect("a put");
        assert_eq!(digest, Digest::of(content), "{name:?}");
        assert!(fs::read(&there).expect("the file") == content, "{name:?} differs");
        assert_eq!(fs::metadata(&there).expect("the file").mode() & 0o7777, 0o644, "a new file's mode");
        let back = directory.join("back");
        assert_eq!(transport.get(&there, &back).await.expect("a get"), digest);
        assert!(fs::read(&back).expect("the copy") == content, "{name:?} came back different");
        let again = directory.join("again");
        transport.put(Source::File(back), &again, FileMeta::default()).await.expect("a put of a file");
        assert!(fs::read(&again).expect("the file") == content);
    }
    let names: Vec<_> = snapshot(&place, Depth::State).into_keys().collect();
    assert!(!names.iter().any(|name| name.contains(".stead-")), "{names:?}");
}

pub(super) async fn the_same_file_again_writes_nothing(transport: &dyn Transport, directory: &Path) {
    let place = directory.join("same");
    fs::create_dir(&place).expect("a directory");
    let meta = FileMeta { mode: Some(0o640), ..FileMeta::default() };
    transport.put(bytes(b"content"), &place.join("file"), meta.clone()).await.expect("a put");
    let before = snapshot(&place, Depth::Everything);
    transport.put(bytes(b"content"), &place.join("file"), meta).await.expect("the same put");
    assert_eq!(snapshot(&place, Depth::Everything), before, "the second put wrote something");
}

pub(super) async fn mode_and_owner_are_as_asked_or_kept(transport: &dyn Transport, directory: &Path) {
    let path = directory.join("meta");
    let mode = |path: &Path| fs::metadata(path).expect("the file").mode() & 0o7777;
    let meta = |mode| FileMeta { mode: Some(mode), ..FileMeta::default() };
    transport.put(bytes(b"1"), &path, meta(0o600)).await.expect("a put");
    assert_eq!(mode(&path), 0o600);
    transport.put(bytes(b"2"), &path, FileMeta::default()).await.expect("a put");
    assert_eq!(mode(&path), 0o600, "kept");
    transport.put(bytes(b"2"), &path, meta(0o755)).await.expect("a put");
    assert_eq!(mode(&path), 0o755, "of the same content too");
    if rustix::process::geteuid().is_root() {
        let asked =
            FileMeta { owner: Some("daemon".to_owned()), group: Some("7".to_owned()), ..FileMeta::default() };
        transport.put(bytes(b"3"), &path, asked).await.expect("a put");
        let owner =
            |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).expect("the file");
        let daemon = owner(&path).0;
        assert!(daemon != 0 && owner(&path).1 == 7);
        transport.put(bytes(b"4"), &path, FileMeta::default()).await.expect("a put");
        assert_eq!(owner(&path), (daemon, 7), "kept");
        let unknown = FileMeta { owner: Some("stead-nobody".to_owned()), ..FileMeta::default() };
        transport.put(bytes(b"5"), &path, unknown).await.expect_err("no such user");
        assert_eq!(fs::read(&path).expect("the file"), b"4", "what fails changes nothing");
        // The same content: who owns it already is not set again, and who gets it gets it as it is.
        for user in ["daemon", "0"] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("its mode");
            for _ in 0..2 {
                let asked = FileMeta { owner: Some(user.to_owned()), ..FileMeta::default() };
                transport.put(bytes(b"4"), &path, asked).await.expect("a put");
                assert_eq!(mode(&path), 0o6755, "{user}");
            }
        }
        assert_eq!(owner(&path), (0, 7));
    }
}

pub(super) async fn what_is_wrong_is_named(transport: &dyn Transport, directory: &Path) {
    let place = directory.join("wrong");
    fs::create_dir(&place).expect("a directory");
    fs::write(place.join("file"), "kept").expect("a file");
    fs::set_permissions(place.join("file"), fs::Permissions::from_mode(0o640)).expect("its mode");
    let before = snapshot(&place, Depth::Everything);
    let parent = place.join("missing");
    let put = transport.put(bytes(b"x"), &parent.join("file"), FileMeta::default()).await;
    let error = put.expect_err("its directory is missing");
    assert_eq!(error.class(), ErrorClass::Operation);
    assert!(error.message.contains(&*parent.to_string_lossy()), "{error}");
    let error = transport.put(bytes(b"x"), &place, FileMeta::default()).await.expect_err("a directory");
    assert!(error.message.contains("directory"), "{error}");
    for (from, reason) in [(place.join("nothing"), "nothing"), (place.clone(), "wrong")] {
        let error = transport.get(&from, &directory.join("got")).await.expect_err("no file");
        assert!(error.message.contains(reason), "{error}");
    }
    let to = place.join("missing/got");
    let error = transport.get(&place.join("file"), &to).await.expect_err("no directory here");
    assert!(error.message.contains("missing"), "{error}");
    assert_eq!(snapshot(&place, Depth::Everything), before);
    assert!(!directory.join("got").exists());
}

/// Answers every connection with what it says, in capitals.
async fn echo(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.ok();
    stream.write_all(&said.to_ascii_uppercase()).await.ok();
    stream.shutdown().await.ok();
}

async fn ask(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> String {
    stream.write_all(b"hello").await.expect("a write");
    stream.shutdown().await.expect("an end");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

pub(super) async fn connections_are_carried(transport: &dyn Transport, directory: &Path) {
    let tcp = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let tcp_end = Endpoint::Tcp("127.0.0.1".to_owned(), tcp.local_addr().expect("its address").port());
    let socket = directory.join("server");
    let unix = UnixListener::bind(near(&socket).path()).expect("a socket");
    let unix_end = Endpoint::Unix(socket);
    let mut servers = JoinSet::new();
    servers.spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            echo(stream).await;
        }
    });
    servers.spawn(async move {
        while let Ok((stream, _)) = unix.accept().await {
            echo(stream).await;
        }
    });
    for (number, to) in [tcp_end, unix_end].into_iter().enumerate() {
        let any = Endpoint::Tcp("127.0.0.1".to_owned(), 0);
        let here = Endpoint::Unix(directory.join(format!("here{number}")));
        let there = Endpoint::Unix(directory.join(format!("there{number}")));
        for what in [
            Forward::Local { listen: any.clone(), to: to.clone() },
            Forward::Local { listen: here, to: to.clone() },
            Forward::Remote { listen: any, to: to.clone() },
            Forward::Remote { listen: there, to },
        ] {
            let said = format!("{what:?}");
            let forwarded = transport.forward(what).await.expect("a forward");
            for _ in 0..2 {
                let answer = match &forwarded.listen {
                    Endpoint::Tcp(host, port) => {
                        assert_ne!(*port, 0);
                        ask(TcpStream::connect((host.as_str(), *port)).await.expect(&said)).await
                    }
                    Endpoint::Unix(path) => {
                        ask(UnixStream::connect(near(path).path()).await.expect(&said)).await
                    }
                };
                assert_eq!(answer, "HELLO", "{said}");
            }
            let listen = forwarded.listen.clone();
            drop(forwarded);
            ended(&listen).await;
        }
    }
}

fn near(path: &Path) -> SocketPath {
    SocketPath::new(path).expect("its directory")
}

/// Waits until nothing listens there any more.
async fn ended(listen: &Endpoint) {
    for _ in 0..6000 {
        let gone = match listen {
            Endpoint::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).await.is_err(),
            Endpoint::Unix(path) => !path.exists(),
        };
        if gone {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{listen:?} still listens after its forward was dropped");
}
