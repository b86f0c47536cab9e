//! What is particular to single configuration operations, with the real programs: `visudo`, `sshd`, `mount`, `ip`,
//! `netplan`, `ifquery`, `update-ca-certificates`. Root operations run in a container.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::ErrorClass;
use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::flow::{params_of, run as carry_out};
use stead_testkit::system_cases::configuration::{ANN, AUTHORITY, put};
use stead_testkit::tree::{Depth, difference, snapshot};

use crate::configuration::cases;
use crate::contract::sh;
use crate::state::{check, operation, run};

pub(crate) fn said(script: &str) -> String {
    let out = Command::new("/bin/sh").arg("-c").arg(script).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn has(program: &str) -> bool {
    let found = ["/usr/sbin", "/usr/bin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !found {
        assert!(std::env::var_os("STEAD_CI").is_none(), "`{program}` is needed");
        #[expect(clippy::print_stderr, reason = "the reader of the test's output is told")]
        {
            eprintln!("skipped: `{program}` is not installed");
        }
    }
    found
}

/// Section 7, rule 3: a module that is part of the kernel cannot go, and the dry run says so too.
#[test]
fn a_module_that_is_part_of_the_kernel_cannot_be_absent() {
    inside(|| {
        let list = format!("/lib/modules/{}/modules.builtin", said("uname -r").trim());
        put(Path::new("/"), &list, "kernel/x/stead-test.ko\n");
        put(Path::new("/"), "/etc/modules-load.d/mine.conf", "stead_test\n");
        let values = json!({"name": "stead-test", "state": "absent"});
        let predicted = check(&context(Path::new("/")), "kernel.module", values.clone()).unwrap_err();
        let error = run(&context(Path::new("/")), "kernel.module", values).unwrap_err();
        assert_eq!((error.class, &error.message), (ErrorClass::Permanent, &predicted.message));
        assert!(error.message.contains("part of the kernel"), "{error}");
        assert_eq!(said("cat /etc/modules-load.d/mine.conf"), "stead_test\n");
    });
}

/// Case 19 of reach: a rule that `visudo` refuses leaves the file as it is and nothing beside it.
#[test]
fn a_rule_that_visudo_refuses_changes_nothing() {
    if !has("visudo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let file = dir.path().join("rule");
    std::fs::write(&file, "ann ALL=(ALL) ALL\n").unwrap();
    let inode = snapshot(dir.path(), Depth::Everything).remove("rule");
    let rule = |content: &str| json!({"path": file.to_str().unwrap(), "content": content, "backup": true, "validate": ["visudo", "-cf", "{}"]});
    let error = run(&cx, "file.present", rule("ann ALL=(ALL NOPASSWD ALL\n")).unwrap_err();
    assert_eq!(error.class, ErrorClass::Operation);
    assert!(
        error.message.contains("visudo") && error.message.contains("syntax error") && !error.changed,
        "{error}"
    );
    let after = snapshot(dir.path(), Depth::Everything);
    assert_eq!(after.get("rule"), inode.as_ref());
    assert_eq!(after.len(), 2, "a leftover: {after:?}");
    for (content, changed, files) in [("bob ALL=(ALL) ALL\n", true, 3), ("bob ALL=(ALL) ALL\n", false, 3)] {
        assert_eq!(run(&cx, "file.present", rule(content)).unwrap().changed, changed);
        assert_eq!(snapshot(dir.path(), Depth::Everything).len(), files, "one copy per change");
    }
}

/// Case 23 of reach: whatever leads out of the root prefix, configuration operations do not follow it.
#[test]
fn hostile_links_never_lead_out_of_the_root_prefix() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for case in cases() {
        for how in ["absolute", "relative", "files"] {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().canonicalize().unwrap();
            let (root, sources, outside) = (base.join("root"), base.join("sources"), base.join("outside"));
            for made in [&root, &sources] {
                std::fs::create_dir_all(made).unwrap();
            }
            (case.sources)(&sources);
            (case.fresh)(&root);
            // The same tree outside, and every way there from inside.
            sh(&base, "cp -a root outside");
            for top in ["etc", "home", "usr", "srv"] {
                if !root.join(top).is_dir() {
                    continue;
                }
                match how {
                    "absolute" => plant(&root, top, &outside.join(top)),
                    "relative" => plant(&root, top, &Path::new("../outside").join(top)),
                    _ => {
                        let files: Vec<_> = snapshot(&root.join(top), Depth::State).into_keys().collect();
                        for below in files.iter().filter(|below| root.join(top).join(below).is_file()) {
                            let file = Path::new(top).join(below);
                            plant(&root, file.to_str().unwrap(), &outside.join(&file));
                        }
                    }
                }
            }
            let before = snapshot(&outside, Depth::Everything);
            let cx = OpContext { root: Some(root), ..context(&sources) };
            let result = run(&cx, case.operation, (case.params)());
            let touched = difference(&before, &snapshot(&outside, Depth::Everything));
            assert!(touched.is_empty(), "{} ({}, {how}): {touched:?}: {result:?}", case.operation, case.name);
        }
    }
}

fn plant(root: &Path, name: &str, to: &Path) {
    let path = root.join(name);
    if path.is_dir() {
        std::fs::remove_dir_all(&path).unwrap();
    } else {
        std::fs::remove_file(&path).unwrap();
    }
    symlink(to, path).unwrap();
}

/// Names that would be another file, and texts that would be another line, are refused before anything is looked at.
#[test]
fn hostile_names_and_texts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    put(&root, "/etc/passwd", "zoe:x:7777:7777::/home/zoe:/bin/sh\n");
    put(&root, "/etc/network/interfaces", "");
    put(&root, "/usr/sbin/chronyd", "");
    put(&root, "/etc/chrony/chrony.conf", "");
    std::fs::create_dir_all(root.join("home/zoe")).unwrap();
    let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
    let tries: &[(&str, Value)] = &[
        ("sudo.rule", json!({"name": "../sudoers", "user": "ann"})),
        ("sudo.rule", json!({"name": "a.b", "user": "ann"})),
        ("sudo.rule", json!({"name": "a~", "user": "ann"})),
        ("sudo.rule", json!({"name": "a", "user": "ann\nbob ALL=(ALL) NOPASSWD: ALL"})),
        ("cron.entry", json!({"name": "../crontab", "schedule": "@daily", "command": "true"})),
        ("cron.entry", json!({"name": "a", "schedule": "@daily", "command": "true\n@daily root evil"})),
        ("certificate.ca", json!({"name": "../../x", "content": AUTHORITY})),
        (
            "certificate.ca",
            json!({"name": "x", "content": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}),
        ),
        ("certificate.ca", json!({"name": "x", "content": format!("{AUTHORITY}{AUTHORITY}")})),
        ("certificate.ca", json!({"name": "x", "content": "no certificate"})),
        ("ssh.authorized_key", json!({"user": "zoe", "keys": [format!("{ANN}\n{ANN}")]})),
        ("ssh.authorized_key", json!({"user": "zoe", "keys": ["ssh-rsa nonsense"]})),
        ("ssh.daemon", json!({"settings": {"Banner": "/x\nPermitRootLogin yes"}})),
        ("ssh.daemon", json!({"settings": {"Match": "all"}})),
        ("ssh.daemon", json!({"settings": {"Banner": "x"}, "name": "../../x"})),
        ("hosts.entry", json!({"address": "10.0.0.1", "names": ["a\n10.0.0.2 b"]})),
        ("hostname", json!({"name": "a\nb"})),
        ("timezone", json!({"zone": "../../../etc/passwd"})),
        ("sysctl.value", json!({"key": "net/../../x", "value": "1"})),
        ("sysctl.value", json!({"key": "net.x", "value": "1\nkernel.panic = 1"})),
        ("kernel.module", json!({"name": "../x"})),
        ("kernel.module", json!({"name": "x", "options": "a=1\ninstall x reboot"})),
        ("mount.present", json!({"path": "/mnt/../etc", "device": "tmpfs", "fstype": "tmpfs"})),
        ("mount.present", json!({"path": "/mnt", "device": "tmpfs\nx", "fstype": "tmpfs"})),
        ("mount.present", json!({"path": "/mnt", "device": "tmpfs", "fstype": "tmpfs", "options": "a b"})),
        ("mount.present", json!({"path": "/mnt", "device": "--bind", "fstype": "tmpfs"})),
        ("mount.absent", json!({"path": "/"})),
        ("dns.servers", json!({"servers": ["1.1.1.1\noptions x"]})),
        ("dns.servers", json!({"search": ["a b"]})),
        ("ntp", json!({"servers": ["a\nb"]})),
        ("network.interface", json!({"name": "../x", "addresses": ["10.0.0.1/8"]})),
        ("network.interface", json!({"name": "eth0", "addresses": ["10.0.0.1/8\n  up reboot"]})),
        ("network.interface", json!({"name": "eth0", "confirm": "0s"})),
        ("network.route", json!({"to": "10.0.0.0/8; reboot", "via": "10.0.0.1", "interface": "eth0"})),
        ("network.route", json!({"to": "10.0.0.0/8", "via": "fd00::1", "interface": "eth0"})),
    ];
    let before = snapshot(&root, Depth::Everything);
    for (operation, values) in tries {
        let error = run(&cx, operation, values.clone()).unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{operation} {values}: {error}");
        assert_eq!(check(&cx, operation, values.clone()).unwrap_err(), error, "check and run fail alike");
    }
    assert_eq!(snapshot(&root, Depth::Everything), before);
}

/// Section 8: an entry is validated, and so is its account, by the passwd of the target; predicted as it is done.
#[test]
fn an_entry_of_cron_names_an_account_of_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    put(&root, "/etc/passwd", "zoe:x:7777:7777::/home/zoe:/bin/sh\n");
    let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
    let entry = |user: &str| json!({"name": "a", "schedule": "@daily", "command": "true", "user": user});
    let error = run(&cx, "cron.entry", entry("daemon")).unwrap_err();
    assert_eq!(error.message, "there is no user `daemon`");
    assert_eq!(check(&cx, "cron.entry", entry("daemon")).unwrap_err(), error);
    assert!(!root.join("etc/cron.d").exists());
    // An earlier task of a dry run would make one, and remove the other.
    let later = OpContext { predicted: Default::default(), ..cx.clone() };
    later.predicted.set("user:daemon", json!({}));
    later.predicted.set("user:zoe", Value::Null);
    assert!(check(&later, "cron.entry", entry("daemon")).is_ok());
    assert!(check(&later, "cron.entry", entry("zoe")).is_err());
    for user in ["zoe", "root"] {
        assert!(run(&cx, "cron.entry", entry(user)).unwrap().changed, "{user}");
    }
}

/// What nobody could check is said.
#[test]
fn settings_of_a_daemon_under_a_root_prefix_are_said_to_be_unchecked() {
    let dir = tempfile::tempdir().unwrap();
    let cx = OpContext { root: Some(dir.path().join("root")), ..context(dir.path()) };
    put(&dir.path().join("root"), "/etc/ssh/sshd_config", "");
    let settings = json!({"settings": {"PasswordAuthentication": "maybe"}});
    let notes = run(&cx, "ssh.daemon", settings).unwrap().applied.notes;
    assert!(notes.iter().any(|note| note.contains("10-stead.conf` was not checked")), "{notes:?}");
}

/// A user's own directory cannot lead a root operation elsewhere.
#[test]
fn a_key_is_not_written_through_a_planted_link_or_hard_link() {
    inside(|| {
        sh(
            Path::new("/"),
            "useradd --create-home zoe; mkdir -p /root/.ssh; echo mine > /root/.ssh/authorized_keys",
        );
        let cx = context(Path::new("/"));
        let key = json!({"user": "zoe", "keys": [ANN]});
        symlink("/root/.ssh", "/home/zoe/.ssh").unwrap();
        let error = run(&cx, "ssh.authorized_key", key.clone()).unwrap_err();
        assert!(error.message.contains("symbolic link"), "{error}");
        sh(
            Path::new("/"),
            "rm /home/zoe/.ssh; mkdir /home/zoe/.ssh; ln -s /root/.ssh/authorized_keys /home/zoe/.ssh/authorized_keys",
        );
        assert!(run(&cx, "ssh.authorized_key", key.clone()).is_err());
        sh(
            Path::new("/"),
            "rm /home/zoe/.ssh/*; ln /root/.ssh/authorized_keys /home/zoe/.ssh/authorized_keys",
        );
        let error = run(&cx, "ssh.authorized_key", key.clone()).unwrap_err();
        assert!(error.message.contains("hard link"), "{error}");
        assert_eq!(std::fs::read_to_string("/root/.ssh/authorized_keys").unwrap(), "mine\n");
        sh(Path::new("/"), "rm /home/zoe/.ssh/*");
        assert!(run(&cx, "ssh.authorized_key", key).unwrap().changed);
        assert_eq!(
            said("stat -c '%a %U %G' /home/zoe/.ssh /home/zoe/.ssh/authorized_keys"),
            "700 zoe zoe\n600 zoe zoe\n"
        );
    });
}

/// A real daemon reads its settings again without being started anew; what it refuses never reaches its files.
#[test]
fn the_ssh_daemon_is_checked_and_reloaded() {
    inside(|| {
        let root = Path::new("/");
        sh(root, "ssh-keygen -A >/dev/null; mkdir -p /run/sshd; rm -rf /etc/ssh/sshd_config.d/*");
        put(root, "/etc/ssh/sshd_config", "ListenAddress 127.0.0.1\nPort 2022\nPidFile /run/sshd-test.pid\n");
        sh(root, "/usr/sbin/sshd -E /tmp/sshd.log");
        wait_until("sshd", || Path::new("/run/sshd-test.pid").exists());
        let pid = std::fs::read_to_string("/run/sshd-test.pid").unwrap();
        // A connection from before: the daemon's banner, then silence.
        let old = std::net::TcpStream::connect("127.0.0.1:2022").unwrap();

        let cx = context(root);
        let files = || snapshot(Path::new("/etc/ssh"), Depth::State);
        let before = files();
        for (settings, says) in
            [(json!({"PermitRootLogin": "maybe"}), "maybe"), (json!({"NoSuchSetting": 1}), "NoSuchSetting")]
        {
            let error = run(&cx, "ssh.daemon", json!({"settings": settings})).unwrap_err();
            assert!(error.message.contains(says) && error.class == ErrorClass::Invalid, "{error}");
            assert_eq!(files(), before);
        }
        let ran =
            run(&cx, "ssh.daemon", json!({"settings": {"PermitRootLogin": "no", "LogLevel": "verbose"}}))
                .unwrap();
        assert!(
            ran.diff.fields.iter().any(|field| field.name == "effective permitrootlogin"),
            "{:?}",
            ran.diff
        );
        wait_until("the reload", || said("cat /tmp/sshd.log").matches("Server listening").count() >= 2);
        assert!(said("cat /tmp/sshd.log").contains("Received SIGHUP"));
        assert_eq!(std::fs::read_to_string("/run/sshd-test.pid").unwrap(), pid, "the same process");
        assert!(said("/usr/sbin/sshd -T").contains("\npermitrootlogin no\n"));
        // Still connected: nothing to read and no end.
        old.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut bytes = [0; 256];
        let mut ended = false;
        while let Ok(read) = std::io::Read::read(&mut &old, &mut bytes) {
            ended = read == 0;
            if ended {
                break;
            }
        }
        assert!(!ended, "the session was dropped");

        // Another file comes first: what is effective is not what was asked for, and this is said.
        put(root, "/etc/ssh/sshd_config.d/00-first.conf", "MaxAuthTries 9\n");
        let error = run(&cx, "ssh.daemon", json!({"settings": {"MaxAuthTries": 2}})).unwrap_err();
        assert!(error.message.contains("maxauthtries") && error.message.contains('9'), "{error}");
        sh(root, &format!("kill {}", pid.trim()));
    });
}

/// Options of a mounted file system change without losing what is in it.
#[test]
fn changed_mount_options_remount() {
    inside(|| {
        let cx = context(Path::new("/"));
        let mount =
            |options: &str| json!({"path": "/mnt", "device": "tmpfs", "fstype": "tmpfs", "options": options});
        assert!(run(&cx, "mount.present", mount("size=1m")).unwrap().changed);
        std::fs::write("/mnt/kept", "here").unwrap();
        let ran = run(&cx, "mount.present", mount("size=2m,ro,noatime")).unwrap();
        assert!(ran.changed);
        assert_eq!(std::fs::read_to_string("/mnt/kept").unwrap(), "here");
        let options = said("findmnt -rno OPTIONS /mnt");
        assert!(options.starts_with("ro,noatime") && options.contains("size=2048k"), "{options}");
        std::fs::write("/etc/fstab", "").unwrap();
        let kept = json!({"path": "/mnt", "device": "tmpfs", "fstype": "tmpfs"});
        assert!(run(&cx, "mount.present", kept.clone()).unwrap().changed, "the line was missing");
        assert!(said("findmnt -rno OPTIONS /mnt").starts_with("ro,noatime"), "what is not given stays");
        assert!(run(&cx, "mount.absent", json!({"path": "/mnt"})).unwrap().changed);
        assert!(!run(&cx, "mount.absent", json!({"path": "/mnt"})).unwrap().changed);
        assert_eq!(said("findmnt -rno SOURCE /mnt"), "");
    });
}

/// Section 8: a directory that is bound to another place is compared with what is there, and comes back as itself.
#[test]
fn a_bound_directory_is_compared_and_comes_back() {
    inside(|| {
        let cx = context(Path::new("/"));
        sh(
            Path::new("/"),
            "for name in one two; do mkdir -p /srv/$name/deep; echo $name >/srv/$name/name; done",
        );
        let bound =
            |device: &str| json!({"path": "/mnt", "device": device, "fstype": "none", "options": "bind,ro"});
        let shown = || said("cat /mnt/name; findmnt -rno OPTIONS /mnt | cut -d, -f1");
        for (device, name) in [("/srv/one", "one"), ("/srv/two", "two"), ("/srv/../srv/one", "one")] {
            assert!(run(&cx, "mount.present", bound(device)).unwrap().changed, "{device}");
            assert_eq!(shown(), format!("{name}\nro\n"));
            assert!(!run(&cx, "mount.present", bound(device)).unwrap().changed, "{device}");
        }
        // Taken away by hand, and another one put there.
        sh(Path::new("/"), "umount /mnt; mount --bind /srv/two /mnt");
        assert!(run(&cx, "mount.present", bound("/srv/one")).unwrap().changed);
        assert_eq!(shown(), "one\nro\n");

        // A file system that has no device to mount anew, and a directory in it.
        sh(
            Path::new("/"),
            "umount /mnt; mkdir /srv/memory; mount -t tmpfs none /srv/memory; mkdir /srv/memory/deep
            echo whole >/srv/memory/name; echo deep >/srv/memory/deep/name",
        );
        for (device, name) in [("/srv/memory", "whole"), ("/srv/memory/deep", "deep"), ("/srv/two", "two")] {
            sh(Path::new("/"), &format!("mount --bind -o ro {device} /mnt"));
            let (absent, values) = (operation("mount.absent"), params(json!({"path": "/mnt"})));
            let ran = carry_out(absent.as_ref(), &cx, &values).unwrap();
            assert_eq!(shown(), "", "{device}");
            let inverse = absent.inverse(&values, &ran.before).unwrap();
            carry_out(operation(inverse.operation.as_str()).as_ref(), &cx, &params_of(&inverse)).unwrap();
            assert_eq!(shown(), format!("{name}\nro\n"), "{device}");
            sh(Path::new("/"), "umount /mnt");
        }
        // A directory of it is not the file system.
        sh(Path::new("/"), "mount --bind /srv/memory/deep /mnt");
        let whole = json!({"path": "/mnt", "device": "none", "fstype": "tmpfs", "options": "size=1m"});
        assert!(run(&cx, "mount.present", whole).unwrap().changed);
        assert_eq!(said("ls -A /mnt"), "");
    });
}

/// What the machine trusts, by the programs that ask: the bundle, the links, and inside a root prefix.
#[test]
fn a_certificate_authority_is_trusted_here_or_in_the_root_prefix() {
    inside(|| {
        let root = Path::new("/");
        put(root, "/etc/ca-certificates.conf", "mozilla/ISRG_Root_X1.crt\n");
        put(root, "/tmp/ca.pem", AUTHORITY);
        let trusted = |prefix: &str| {
            let bundle =
                std::fs::read_to_string(format!("{prefix}/etc/ssl/certs/ca-certificates.crt")).unwrap();
            bundle.contains(AUTHORITY.trim())
        };
        let cx = context(root);
        // A root with the machine's programs and everything else its own.
        sh(
            root,
            "mkdir /tmp/r; mount -t tmpfs none /tmp/r; cd /tmp/r
            mkdir -p usr etc/ssl/certs tmp dev; mount --bind /usr usr; mount -t tmpfs none usr/local/share
            for name in bin sbin lib lib64; do ln -s usr/$name $name; done
            touch dev/null; mount --bind /dev/null dev/null; cp /etc/ca-certificates.conf etc",
        );
        let image = OpContext { root: Some("/tmp/r".into()), ..context(root) };
        let ca = json!({"name": "test", "content": AUTHORITY});
        let ran = run(&image, "certificate.ca", ca.clone()).unwrap();
        assert!(ran.changed && ran.applied.notes.is_empty(), "{:?}", ran.applied);
        assert!(trusted("/tmp/r"), "in the prefix");
        assert_eq!(
            std::fs::read_link("/tmp/r/etc/ssl/certs/test.pem").unwrap(),
            Path::new("/usr/local/share/ca-certificates/test.crt")
        );
        assert!(!trusted(""), "not outside");

        run(&cx, "certificate.ca", ca).unwrap();
        assert!(trusted(""));
        let verify = "openssl verify -no-CAfile -no-CAstore -CApath /etc/ssl/certs /tmp/ca.pem";
        assert!(said(verify).contains("OK"));
        run(&cx, "certificate.ca", json!({"name": "test", "state": "absent"})).unwrap();
        assert!(!trusted("") && !said(verify).contains("OK"));
    });
}
