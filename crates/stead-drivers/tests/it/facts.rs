//! Facts, compared with what the system's own programs and files say.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::{ErrorClass, Facts};
use stead_runner::operation::{Entry, OpContext, OpError, Outcome};
use stead_testkit::context::{context, params};

async fn run(cx: &OpContext, values: Value) -> Result<Outcome, OpError> {
    match stead_drivers::Drivers::standard().get("facts") {
        Some(Entry::Action(action)) => action.run(cx, &params(values)).await,
        Some(Entry::State(_)) | None => panic!("facts is no action"),
    }
}

async fn facts(cx: &OpContext) -> Facts {
    serde_json::from_value(run(cx, json!({})).await.unwrap().data.unwrap()).unwrap()
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn sorted<T: Clone + Ord>(items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    items.sort();
    items
}

/// Case 16: equal to `/etc/os-release` (read by a shell), `uname`, `/proc/meminfo` and what else the system says.
#[tokio::test]
async fn built_in_facts_are_what_the_system_says() {
    let here = tempfile::tempdir().unwrap();
    let facts = facts(&context(here.path())).await;
    let release = |name: &str| {
        let script = format!(". /etc/os-release; printf %s \"${name}\"");
        Some(said("sh", &["-c", &script])).filter(|text| !text.is_empty())
    };
    assert_eq!(facts.os.distribution, release("ID"));
    assert_eq!(facts.os.version, release("VERSION_ID"));
    assert_eq!(facts.os.codename, release("VERSION_CODENAME"));
    assert_eq!(facts.os.name, release("PRETTY_NAME"));
    assert_eq!(
        facts.os.major.map(|major| major.to_string()),
        release("VERSION_ID").map(|version| { version.split('.').next().unwrap().to_owned() })
    );
    assert_eq!(facts.kernel.name.as_deref(), Some(said("uname", &["-s"]).as_str()));
    assert_eq!(facts.kernel.release.as_deref(), Some(said("uname", &["-r"]).as_str()));
    assert_eq!(facts.hostname.as_deref(), Some(said("uname", &["-n"]).as_str()));
    assert_eq!(facts.arch.as_deref(), Some(std::env::consts::ARCH));

    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kibibytes = |name: &str| -> u64 {
        let line = meminfo.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(facts.memory.total_bytes, Some(kibibytes("MemTotal") * 1024));
    assert_eq!(facts.memory.swap_total_bytes, Some(kibibytes("SwapTotal") * 1024));
    assert!(facts.memory.available_bytes.unwrap() <= facts.memory.total_bytes.unwrap());

    assert_eq!(facts.cpu.count.unwrap().to_string(), said("getconf", &["_NPROCESSORS_ONLN"]));
    assert_eq!(
        facts.boot_id,
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
    );
    assert_eq!(facts.user.uid.unwrap().to_string(), said("id", &["-u"]));
    assert_eq!(facts.user.name.as_deref(), Some(said("id", &["-un"]).as_str()));
    let uptime: f64 =
        std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((facts.uptime_seconds.unwrap() as f64 - uptime).abs() < 60.0);
    let own = said("sha256sum", &[std::env::current_exe().unwrap().to_str().unwrap()]);
    assert_eq!(facts.stead.sha256.as_deref(), own.split(' ').next());
    assert!(facts.mounts.iter().any(|mount| mount.path == "/"), "{:?}", facts.mounts);
    let names: Vec<&String> = facts.disks.iter().map(|disk| &disk.name).collect();
    assert_eq!(sorted(&names), names);
    for disk in &facts.disks {
        let sectors = std::fs::read_to_string(format!("/sys/block/{}/size", disk.name)).unwrap();
        assert_eq!(disk.size_bytes, sectors.trim().parse::<u64>().unwrap() * 512);
    }
}

/// Case 16: interfaces equal `ip -j addr`, the primary address that of `ip -j route`.
#[tokio::test]
async fn interfaces_are_what_ip_says() {
    if Command::new("ip").arg("-V").output().is_err() {
        assert!(std::env::var_os("STEAD_CI").is_none(), "ip is not installed");
        eprintln!("ip is not installed (package iproute2): its check is left out");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    // Other tests make and remove interfaces meanwhile; what is there before and after is compared.
    let before: Value = serde_json::from_str(&said("ip", &["-j", "addr"])).unwrap();
    let facts = facts(&context(here.path())).await;
    let after: Value = serde_json::from_str(&said("ip", &["-j", "addr"])).unwrap();
    let stable = before.as_array().unwrap().iter().filter(|link| after.as_array().unwrap().contains(link));
    let mut compared = 0;
    for link in stable {
        let own = facts.interfaces.iter().find(|own| own.name == link["ifname"]).unwrap();
        assert_eq!(own.mac.as_deref(), link["address"].as_str().filter(|mac| mac.contains(':')));
        assert_eq!(own.mtu, link["mtu"].as_u64());
        assert_eq!(own.up, link["flags"].as_array().unwrap().contains(&json!("UP")));
        let addresses: Vec<Value> = link["addr_info"].as_array().unwrap().iter().filter(|info| info["local"].is_string()).map(|info| {
            json!({"address": info["local"], "prefix": info["prefixlen"], "family": info["family"]})
        }).collect();
        assert_eq!(serde_json::to_value(&own.addresses).unwrap(), Value::Array(addresses), "{}", own.name);
        compared += 1;
    }
    assert!(compared > 0, "at least `lo` is there");
    let names: Vec<&String> = facts.interfaces.iter().map(|interface| &interface.name).collect();
    assert_eq!(sorted(&names), names);

    let routes: Value = serde_json::from_str(&said("ip", &["-j", "route", "show", "default"])).unwrap();
    if let Some(route) = routes.as_array().and_then(|routes| routes.first()) {
        assert_eq!(facts.address.interface.as_deref(), route["dev"].as_str());
        assert_eq!(facts.address.gateway4.as_deref(), route["gateway"].as_str());
        if let Some(gateway) = route["gateway"].as_str() {
            let way: Value = serde_json::from_str(&said("ip", &["-j", "route", "get", gateway])).unwrap();
            assert_eq!(facts.address.primary4.as_deref(), way[0]["prefsrc"].as_str());
        }
    } else {
        assert_eq!(facts.address.gateway4, None);
    }
}

/// Case 16: JSON, executable, broken, slow and world-writable files; what is wrong is left out and said.
#[tokio::test]
async fn custom_facts_are_read_run_or_left_out_with_a_warning() {
    let root = tempfile::tempdir().unwrap();
    let facts_d = root.path().join("etc/stead/facts.d");
    let file = |name: &str, text: &str, mode: u32| write(&facts_d.join(name), text, mode);
    file("rack.json", r#"{"row": 7, "unit": "b"}"#, 0o644);
    file("answer.sh", "#!/bin/sh\nprintf '%s' '[4, 2]'\n", 0o755);
    file("argless", "#!/bin/sh\necho \"$#\"\n", 0o700);
    file("broken.json", "{not json", 0o644);
    file("fails", "#!/bin/sh\necho 'no such sensor' >&2\nexit 3\n", 0o755);
    file("slow", "#!/bin/sh\necho x >>\"${0%/*}/../slow.ran\"\nsleep 600\necho 1\n", 0o755);
    file("loud", "#!/bin/sh\nhead -c 400000 /dev/zero | tr '\\0' 1\n", 0o755);
    file("open.json", "1", 0o666);
    file("open-program", "#!/bin/sh\ntouch ran\necho 1\n", 0o757);
    file("plain.txt", "1", 0o644);
    file("rack.sh", "#!/bin/sh\necho 1\n", 0o755);
    file(".hidden.json", "1", 0o644);
    std::fs::create_dir(facts_d.join("directory.json")).unwrap();
    symlink("/etc/passwd", facts_d.join("outside.json")).unwrap();
    let mut cx = context(root.path());
    cx.root = Some(root.path().to_owned());

    let began = Instant::now();
    let outcome = run(&cx, json!({"only": "custom"})).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "slow ones run beside each other: {:?}",
        began.elapsed()
    );
    let data = outcome.data.unwrap();
    assert_eq!(data, json!({"custom": {"rack": {"row": 7, "unit": "b"}, "answer": [4, 2], "argless": 0}}));
    assert!(!outcome.changed);

    let mut reasons: Vec<(String, String)> = Vec::new();
    for warning in &outcome.warnings {
        assert_eq!(warning.code, "reach/bad-fact");
        let rest = warning
            .text
            .strip_prefix("local: /etc/stead/facts.d/")
            .unwrap_or_else(|| panic!("{}", warning.text));
        let (name, reason) = rest.split_once(": ").unwrap();
        reasons.push((name.to_owned(), reason.to_owned()));
    }
    for (name, part) in [
        ("broken.json", "no valid JSON"),
        ("fails", "exit code 3: no such sensor"),
        ("slow", "did not end within 5 s"),
        ("loud", "more than 262144 bytes"),
        ("open.json", "everybody may write"),
        ("open-program", "everybody may write"),
        ("plain.txt", "neither `NAME.json` nor executable"),
        ("rack.sh", "another file gives the fact `rack`"),
        ("directory.json", "not a file"),
        ("outside.json", "cannot read it"),
    ] {
        let reason = reasons.iter().find(|(file, _)| file == name).map(|(_, reason)| reason.as_str());
        assert!(reason.is_some_and(|reason| reason.contains(part)), "{name}: {reason:?}");
    }
    assert_eq!(reasons.len(), 10, "{reasons:?}");
    assert!(!root.path().join("ran").exists(), "a program everybody may write to does not run");

    // Nothing else runs than what is asked for.
    let one = run(&cx, json!({"only": ["custom.rack.row", "os.family"]})).await.unwrap();
    assert_eq!(one.data.unwrap(), json!({"custom": {"rack": {"row": 7}}, "os": {"family": "unknown"}}));
    assert_eq!(
        std::fs::read_to_string(root.path().join("etc/stead/slow.ran")).unwrap(),
        "x\n",
        "it ran once"
    );
}

/// Section 6: a link is what its own name says, whatever it leads to is called.
#[tokio::test]
async fn a_link_is_judged_by_its_own_name() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("etc/stead/facts.d");
    write(&root.path().join("opt/rack"), "7", 0o644);
    write(&root.path().join("opt/sensor.json"), "#!/bin/sh\necho 8\n", 0o755);
    std::fs::create_dir_all(&place).unwrap();
    symlink("/opt/rack", place.join("rack.json")).unwrap();
    symlink("/opt/sensor.json", place.join("sensor")).unwrap();
    let mut cx = context(root.path());
    cx.root = Some(root.path().to_owned());
    let outcome = run(&cx, json!({"only": ["custom"]})).await.unwrap();
    assert_eq!(outcome.data.unwrap(), json!({"custom": {"rack": 7, "sensor": 8}}), "{:?}", outcome.warnings);
}

/// Case 16: a directory that everybody may write to is not looked at.
#[tokio::test]
async fn a_world_writable_directory_gives_no_facts() {
    for open in ["etc/stead", "etc/stead/facts.d"] {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("etc/stead/facts.d/a.json"), "1", 0o644);
        std::fs::set_permissions(root.path().join(open), std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut cx = context(root.path());
        cx.root = Some(root.path().to_owned());
        let outcome = run(&cx, json!({"only": ["custom"]})).await.unwrap();
        assert_eq!(outcome.data.unwrap(), json!({"custom": {}}));
        assert_eq!(outcome.warnings.len(), 1);
        let text = &outcome.warnings[0].text;
        assert!(text.contains(&format!("/{open}: everybody may write")), "{text}");
    }
}

/// Section 6: the installation's facts come from the root, the machine's from the running system.
#[tokio::test]
async fn a_root_prefix_gives_the_installations_facts() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    write(
        &at("usr/lib/os-release"),
        "ID=alpine\nVERSION_ID=3.20.1\nPRETTY_NAME=\"Alpine Linux v3.20\"\n",
        0o644,
    );
    write(&at("etc/hostname"), "# ours\nimage-7\n", 0o644);
    write(&at("etc/machine-id"), "0123456789abcdef0123456789abcdef\n", 0o644);
    write(&at("sbin/apk"), "", 0o755);
    symlink("/usr/share/zoneinfo/Europe/Vienna", at("etc/localtime")).unwrap();
    // An absolute link stays inside the root.
    symlink("/usr/lib/os-release", at("etc/os-release")).unwrap();
    let mut cx = context(root.path());
    let running = facts(&cx).await;
    cx.root = Some(root.path().to_owned());
    let inside = facts(&cx).await;
    let os = json!({"family": "alpine", "distribution": "alpine", "version": "3.20.1", "major": 3, "codename": null,
        "name": "Alpine Linux v3.20"});
    assert_eq!(serde_json::to_value(&inside.os).unwrap(), os);
    assert_eq!(inside.hostname.as_deref(), Some("image-7"));
    assert_eq!(inside.machine_id.as_deref(), Some("0123456789abcdef0123456789abcdef"));
    assert_eq!(serde_json::to_value(inside.package_manager).unwrap(), "apk");
    assert_eq!(inside.timezone.as_deref(), Some("Europe/Vienna"));
    assert_eq!(
        (&inside.kernel, &inside.boot_id, &inside.memory.total_bytes),
        (&running.kernel, &running.boot_id, &running.memory.total_bytes)
    );

    // What is not there is null, and the running system's does not shine through.
    let empty = tempfile::tempdir().unwrap();
    cx.root = Some(empty.path().to_owned());
    let inside = facts(&cx).await;
    assert_eq!(
        (inside.hostname, inside.machine_id, inside.timezone, inside.os.distribution),
        (None, None, None, None)
    );
}

#[tokio::test]
async fn wrong_paths_and_roots_are_errors() {
    let here = tempfile::tempdir().unwrap();
    let mut cx = context(here.path());
    let error = run(&cx, json!({"only": ["os.famly"]})).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert!(error.message.contains("os.famly") && error.message.contains("os.family"), "{}", error.message);
    cx.root = Some(here.path().join("nowhere"));
    let error = run(&cx, json!({})).await.unwrap_err();
    assert!(error.message.contains("nowhere"), "{}", error.message);
}
