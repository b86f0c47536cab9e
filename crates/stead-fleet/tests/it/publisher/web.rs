//! What goes over HTTP: blobs that are put and read back, images from elsewhere, tokens of repositories.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stead_fleet::publisher::Ending;
use stead_model::plan::Digest;

use super::world::{TestMaster, World};

/// Serves a directory until the test ends: HEAD, GET and PUT. Returns its port and what it was asked, with headers.
pub(super) fn serve(directory: PathBuf) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &directory, &seen);
        }
    });
    (port, asked)
}

fn answer(mut stream: TcpStream, directory: &Path, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    seen.lock().unwrap().push(head.clone());
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let file = directory.join(path.split('?').next().unwrap_or_default().trim_start_matches('/'));
    let length =
        head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    let (status, content) = match method {
        _ if path.starts_with("/private/") => ("401 Unauthorized", Vec::new()),
        "PUT" => {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, body).unwrap();
            ("201 Created", Vec::new())
        }
        _ => match fs::read(&file) {
            Ok(content) => ("200 OK", content),
            Err(_) => ("404 Not Found", Vec::new()),
        },
    };
    let demand = "WWW-Authenticate: Basic realm=\"x\"\r\n";
    let demand = if status.starts_with("401") { demand } else { "" };
    let answer = format!(
        "HTTP/1.1 {status}\r\n{demand}Content-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    stream.write_all(answer.as_bytes()).unwrap();
    if method != "HEAD" {
        // Who hangs up early has its reasons.
        stream.write_all(&content).unwrap_or(());
    }
}

/// Case 27: images come from an address, blobs go to one, and are read back before anything is published.
#[tokio::test(flavor = "multi_thread")]
async fn blobs_and_images_go_over_the_web() {
    let world = World::new();
    let master = TestMaster::of(&world);
    let (port, asked) = serve(world.path("www"));
    fs::create_dir(world.path("www")).unwrap();
    fs::write(world.path("www/disk.raw"), "bits from elsewhere").unwrap();
    let hash = Digest::of(b"bits from elsewhere");
    world.small_site();
    world.manifest("  - {name: web, type: vm, preset: small, image: debian, spec: web}\n");
    let fleet = |hash: &str| {
        format!(
            "api_version: v1\ndefaults: {{driver: qemu}}\nimages:\n  debian: {{url: 'http://127.0.0.1:{port}/disk.raw', sha256: {hash}}}\n  firmware: {{url: 'http://127.0.0.1:{port}/disk.raw', sha256: {hash}}}\n"
        )
    };
    let settings = || {
        let mut settings = world.settings("");
        settings.file.artifacts = Some(format!("http://127.0.0.1:{port}/blobs"));
        settings
    };
    world.write("fleet.yaml", &fleet(&"ab".repeat(32)));
    world.commit("wrong");
    let wrong = super::world::once(settings(), &master).await;
    assert_eq!(wrong.ending, Ending::Invalid);
    assert!(format!("{:?}", wrong.report).contains("SHA-256"), "{:?}", wrong.report);
    world.write("fleet.yaml", &fleet(&hash.to_string()));
    world.commit("right");
    let published = super::world::once(settings(), &master).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    let stored = world.path("www/blobs/sha256").join(hash.to_string());
    assert_eq!(fs::read_to_string(&stored).unwrap(), "bits from elsewhere");
    let read_back = format!("GET /blobs/sha256/{hash}");
    assert!(asked.lock().unwrap().iter().any(|head| head.starts_with(&read_back)));

    // An image that rotted is put anew; one that nobody has any more is not published.
    fs::write(&stored, "bats from elsewhere").unwrap();
    world.write("README", "2");
    world.commit("rotten");
    let published = super::world::once(settings(), &master).await;
    assert_eq!(published.ending, Ending::Published, "{:?}", published.report);
    assert_eq!(fs::read_to_string(&stored).unwrap(), "bits from elsewhere");
    fs::write(&stored, "bats from elsewhere").unwrap();
    fs::remove_file(world.path("www/disk.raw")).unwrap();
    world.write("README", "3");
    world.commit("lost");
    assert_eq!(super::world::once(settings(), &master).await.ending, Ending::Failed);
    assert_eq!(master.active("default").unwrap().number, 3);
}

/// Section 2: a token reaches the repository from its file, and no process list.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_comes_from_its_file() {
    let world = World::new();
    let master = TestMaster::of(&world);
    let (port, asked) = serve(world.path("www"));
    fs::write(world.path("token"), "t0ken-of-the-lab\n").unwrap();
    let more = format!("credentials: {{token_file: {}}}\n", world.path("token").display());
    let mut settings = world.settings(&more);
    settings.file.repo = format!("http://127.0.0.1:{port}/private/repo.git");
    let away = super::world::once(settings, &master).await;
    assert_eq!(away.ending, Ending::Away);
    let asked = asked.lock().unwrap();
    let expected = stead_model::base64::encode(b"x-access-token:t0ken-of-the-lab");
    assert!(asked.iter().any(|head| head.contains(&format!("Basic {expected}"))), "{asked:?}");
    let error = away.report.watcher.error.unwrap();
    assert!(!error.contains("t0ken"), "{error}");
}
