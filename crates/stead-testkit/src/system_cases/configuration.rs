//! What is a file with computed content plus a part of the running system.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::sh;
use crate::file_cases::BASE;
use crate::operation_contract::{Case, World};
use crate::tree::{Depth, snapshot};

/// A key of somebody.
pub const ANN: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
/// A key of somebody else.
pub const BOB: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g";

/// A certificate authority that nobody has the key of.
pub const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBizCCATGgAwIBAgIUbbrs1ZLPs9z8NsI+7mN5LtLEqn8wCgYIKoZIzj0EAwIw
GjEYMBYGA1UEAwwPU3RlYWQgVGVzdCBSb290MCAXDTI2MTExNTEyNDM0OFoYDzIx
MjYxMDIyMTI0MzQ4WjAaMRgwFgYDVQQDDA9TdGVhZCBUZXN0IFJvb3QwWTATBgcq
hkjOPQIBBggqhkjOPQMBBwNCAAQJuj7aRUE4rvP4+Ciso8eXaqdnaZrrRYnlU153
hr8FcjX2rK3OF2OYtjm1dX4k1fj7Cf9AWkws2MgKnN+pZRcDo1MwUTAdBgNVHQ4E
FgQUnfi75sTGN5/BzogROVcBakVDncAwHwYDVR0jBBgwFoAUnfi75sTGN5/BzogR
OVcBakVDncAwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEA4YT8
lWlx2vlox3a0RnXwkz7Q0EYGWlibjiz3fkD226ECIAjTLfFzgjnURt1TptFrwdC6
KCoY0a09hzv+QK2bu/FL
-----END CERTIFICATE-----
";

/// Returns where `path` is on the system whose root this is.
pub fn at(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Writes a file.
///
/// # Panics
/// If that is not possible.
pub fn put(root: &Path, path: &str, text: &str) {
    let path = at(root, path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Removes what is there.
///
/// # Panics
/// If that is not possible.
pub fn remove(root: &Path, path: &str) {
    let path = at(root, path);
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path).unwrap(),
        Ok(_) => std::fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// Returns the text of a file, nothing if it is not there.
pub fn text(root: &Path, path: &str) -> String {
    std::fs::read_to_string(at(root, path)).unwrap_or_default()
}

/// Sets permission bits.
///
/// # Panics
/// If that is not possible.
pub fn chmod(root: &Path, path: &str, mode: u32) {
    std::fs::set_permissions(at(root, path), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether this is the root of the running system.
pub fn is_running(root: &Path) -> bool {
    root == Path::new("/")
}

/// Returns what a program prints, on the running system alone.
///
/// # Panics
/// If that is not possible.
pub fn says(root: &Path, script: &str) -> String {
    if !is_running(root) {
        return String::new();
    }
    let out = std::process::Command::new("/bin/sh").arg("-c").arg(script).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Returns the state of these paths.
pub fn state(root: &Path, depth: Depth, paths: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in paths {
        let at = at(root, path);
        if let Ok(to) = at.read_link() {
            found.insert((*path).to_owned(), format!("-> {}", to.display()));
        } else if at.exists() {
            found.extend(
                snapshot(&at, depth).into_iter().map(|(below, state)| (format!("{path}/{below}"), state)),
            );
        }
    }
    found
}

/// Who may come in and do what.
pub const ACCESS: &[Case] = &[
    Case {
        operation: "ssh.authorized_key",
        name: "a key in a new file",
        world: World::System(|root, depth| state(root, depth, &["/home/zoe"])),
        params: || json!({"user": "zoe", "keys": [format!("{ANN} ann@home")]}),
        fresh: zoe,
        half: |root| {
            put(root, "/home/zoe/.ssh/authorized_keys", &format!("no-pty {ANN} old\n"));
            chmod(root, "/home/zoe/.ssh", 0o755);
        },
        drifts: &[
            ("directory mode", |root| chmod(root, "/home/zoe/.ssh", 0o755)),
            ("file mode", |root| chmod(root, "/home/zoe/.ssh/authorized_keys", 0o644)),
            ("owner", |root| {
                std::os::unix::fs::chown(at(root, "/home/zoe/.ssh/authorized_keys"), Some(0), Some(0))
                    .unwrap();
            }),
            ("comment", |root| put(root, "/home/zoe/.ssh/authorized_keys", &format!("{ANN} hand\n"))),
            ("existence", |root| remove(root, "/home/zoe/.ssh")),
        ],
        ..BASE
    },
    Case {
        operation: "ssh.authorized_key",
        name: "among others",
        world: World::System(|root, depth| state(root, depth, &["/home/zoe"])),
        params: || json!({"user": "zoe", "keys": [format!("from=\"10.0.0.0/8\" {ANN} ann")]}),
        fresh: |root| {
            zoe(root);
            put(root, "/home/zoe/.ssh/authorized_keys", &format!("# mine\n{BOB} bob"));
        },
        half: |root| put(root, "/home/zoe/.ssh/authorized_keys", &format!("# mine\n{BOB} bob\n{ANN} x")),
        kept: |root| {
            let text = text(root, "/home/zoe/.ssh/authorized_keys");
            text.lines().filter(|line| !line.contains(ANN)).collect::<Vec<_>>().join("\n")
        },
        ..BASE
    },
    Case {
        operation: "ssh.authorized_key",
        name: "exactly these",
        world: World::System(|root, depth| state(root, depth, &["/home/zoe"])),
        params: || json!({"user": "zoe", "keys": [format!("{BOB} b"), format!("{ANN} a")], "exclusive": true}),
        fresh: zoe,
        half: |root| put(root, "/home/zoe/.ssh/authorized_keys", &format!("{ANN} a\n{BOB} b\n")),
        ..BASE
    },
    Case {
        operation: "ssh.authorized_key",
        name: "not this one",
        world: World::System(|root, depth| state(root, depth, &["/home/zoe"])),
        params: || json!({"user": "zoe", "keys": [ANN], "state": "absent"}),
        fresh: |root| {
            zoe(root);
            put(root, "/home/zoe/.ssh/authorized_keys", &format!("{ANN} a\n{BOB} b\n"));
        },
        ..BASE
    },
    Case {
        operation: "sudo.rule",
        name: "put in",
        world: World::System(|root, depth| state(root, depth, &["/etc/sudoers.d"])),
        params: || json!({"name": "deploy", "group": "ops", "commands": ["/usr/bin/systemctl restart web"], "nopasswd": true}),
        fresh: |root| {
            remove(root, "/etc/sudoers.d/deploy");
            put(root, "/etc/sudoers.d/other", "# kept\n");
        },
        half: |root| put(root, "/etc/sudoers.d/deploy", "%ops ALL=(ALL) ALL\n"),
        drifts: &[
            ("mode", |root| chmod(root, "/etc/sudoers.d/deploy", 0o640)),
            ("rule", |root| put(root, "/etc/sudoers.d/deploy", "")),
            ("existence", |root| remove(root, "/etc/sudoers.d/deploy")),
        ],
        kept: |root| text(root, "/etc/sudoers.d/other"),
        ..BASE
    },
    Case {
        operation: "sudo.rule",
        name: "taken out",
        world: World::System(|root, depth| state(root, depth, &["/etc/sudoers.d"])),
        params: || json!({"name": "deploy", "state": "absent"}),
        fresh: |root| {
            put(root, "/etc/sudoers.d/deploy", "ann ALL=(ALL) ALL\n");
            chmod(root, "/etc/sudoers.d/deploy", 0o440);
        },
        ..BASE
    },
    Case {
        operation: "ssh.daemon",
        name: "settings before those of the main file",
        world: World::System(|root, depth| {
            let mut found = state(root, depth, &["/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d"]);
            let effective =
                says(root, "/usr/sbin/sshd -T | grep -E '^(permitrootlogin|maxauthtries|acceptenv) '");
            found.insert("effective".to_owned(), effective);
            found
        }),
        params: || {
            json!({"settings": {"PermitRootLogin": "prohibit-password", "MaxAuthTries": 3, "AcceptEnv": ["A", "B"],
                "X11Forwarding": false}})
        },
        fresh: |root| {
            remove(root, "/etc/ssh/sshd_config.d");
            put(
                root,
                "/etc/ssh/sshd_config",
                "# top\nPermitRootLogin yes\nAcceptEnv LANG\nInclude /etc/ssh/sshd_config.d/*.conf\n",
            );
            if is_running(root) {
                sh(root, "ssh-keygen -A >/dev/null; mkdir -p /run/sshd");
            }
        },
        half: |root| put(root, "/etc/ssh/sshd_config.d/10-stead.conf", "MaxAuthTries 3\n"),
        drifts: &[
            ("setting", |root| put(root, "/etc/ssh/sshd_config.d/10-stead.conf", "MaxAuthTries 6\n")),
            ("broken file", |root| put(root, "/etc/ssh/sshd_config.d/10-stead.conf", "Nonsense\n")),
            ("include", |root| {
                put(root, "/etc/ssh/sshd_config", "# top\nPermitRootLogin yes\nAcceptEnv LANG\n")
            }),
        ],
        kept: |root| {
            let text = text(root, "/etc/ssh/sshd_config");
            text.lines().filter(|line| !line.starts_with("Include")).collect::<Vec<_>>().join("\n")
        },
        ..BASE
    },
];

/// An account with a home.
fn zoe(root: &Path) {
    let passwd = text(root, "/etc/passwd");
    if !passwd.contains("zoe:") {
        put(root, "/etc/passwd", &format!("{passwd}zoe:x:7777:7778::/home/zoe:/bin/sh\n"));
    }
    remove(root, "/home/zoe");
    std::fs::create_dir_all(at(root, "/home/zoe")).unwrap();
    std::os::unix::fs::chown(at(root, "/home/zoe"), Some(7777), Some(7778)).unwrap();
}

/// What a machine is called and where it is.
pub const IDENTITY: &[Case] = &[
    Case {
        operation: "hosts.entry",
        name: "names of an address",
        world: World::System(|root, depth| state(root, depth, &["/etc/hosts"])),
        params: || json!({"address": "10.0.0.7", "names": ["web.example", "web"]}),
        fresh: |root| put(root, "/etc/hosts", "127.0.0.1 localhost # us\n10.0.0.8  web db\n"),
        half: |root| put(root, "/etc/hosts", "127.0.0.1 localhost # us\n10.0.0.8  web db\n10.0.0.7 web\n"),
        drifts: &[
            ("name", |root| {
                put(root, "/etc/hosts", "127.0.0.1 localhost # us\n10.0.0.8 db\n10.0.0.7\tweb.example\n")
            }),
            ("existence", |root| put(root, "/etc/hosts", "127.0.0.1 localhost # us\n10.0.0.8 db\n")),
        ],
        kept: |root| {
            format!(
                "{} {}",
                text(root, "/etc/hosts").contains("localhost # us\n"),
                text(root, "/etc/hosts").contains("db")
            )
        },
        ..BASE
    },
    Case {
        operation: "hosts.entry",
        name: "taken off",
        world: World::System(|root, depth| state(root, depth, &["/etc/hosts"])),
        params: || json!({"address": "10.0.0.8", "names": ["web"], "state": "absent"}),
        fresh: |root| put(root, "/etc/hosts", "10.0.0.8  web db\n10.0.0.9 web"),
        ..BASE
    },
    Case {
        operation: "hostname",
        name: "files and the running one",
        world: World::System(|root, depth| {
            let mut found = state(root, depth, &["/etc/hosts", "/etc/hostname"]);
            found.insert("running".to_owned(), says(root, "hostname"));
            found
        }),
        params: || json!({"name": "quay", "domain": "example.org"}),
        fresh: |root| {
            put(root, "/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 rig.lan rig alias # own\n");
            put(root, "/etc/hostname", "rig\n");
            says(root, "hostname rig");
        },
        half: |root| {
            put(root, "/etc/hosts", "127.0.0.1 localhost\n");
            says(root, "hostname quay");
        },
        drifts: &[
            ("running or file", |root| {
                if is_running(root) {
                    says(root, "hostname hand");
                } else {
                    put(root, "/etc/hostname", "hand\n");
                }
            }),
            ("file", |root| put(root, "/etc/hostname", "hand\n")),
            ("hosts line", |root| {
                put(root, "/etc/hosts", "127.0.0.1 localhost\n127.0.1.1\tquay alias # own\n")
            }),
        ],
        kept: |root| format!("{}", text(root, "/etc/hosts").contains("127.0.0.1 localhost\n")),
        ..BASE
    },
    Case {
        operation: "timezone",
        name: "link and name",
        world: World::System(|root, depth| state(root, depth, &["/etc/localtime", "/etc/timezone"])),
        params: || json!({"zone": "Europe/Vienna"}),
        fresh: |root| {
            put(root, "/usr/share/zoneinfo/Europe/Vienna", "TZif");
            remove(root, "/etc/localtime");
            put(root, "/etc/localtime", "a copy");
            put(root, "/etc/timezone", "Etc/UTC\n");
        },
        half: |root| put(root, "/etc/timezone", "Europe/Vienna\n"),
        drifts: &[
            ("link", |root| {
                remove(root, "/etc/localtime");
                symlink("/usr/share/zoneinfo/Etc/UTC", at(root, "/etc/localtime")).unwrap();
            }),
            ("name", |root| remove(root, "/etc/timezone")),
        ],
        ..BASE
    },
];

/// What else is a file and a part of the running system.
pub const RUNNING: &[Case] = &[
    Case {
        operation: "sysctl.value",
        name: "running and after a start",
        world: World::System(|root, depth| {
            let mut found = state(root, depth, &["/etc/sysctl.d/60-stead.conf"]);
            found.insert("running".to_owned(), says(root, "cat /proc/sys/net/ipv4/ip_forward"));
            found
        }),
        params: || json!({"key": "net.ipv4.ip_forward", "value": 1}),
        fresh: |root| {
            put(root, "/etc/sysctl.d/60-stead.conf", "# c\nvm.swappiness = 7\n");
            says(root, "echo 0 > /proc/sys/net/ipv4/ip_forward");
        },
        half: |root| put(root, "/etc/sysctl.d/60-stead.conf", "net.ipv4.ip_forward=0\nvm.swappiness = 7\n"),
        drifts: &[("running or file", |root| {
            if is_running(root) {
                says(root, "echo 0 > /proc/sys/net/ipv4/ip_forward");
            } else {
                put(root, "/etc/sysctl.d/60-stead.conf", "# c\nvm.swappiness = 7\n");
            }
        })],
        kept: |root| text(root, "/etc/sysctl.d/60-stead.conf").contains("vm.swappiness = 7\n").to_string(),
        ..BASE
    },
    Case {
        operation: "sysctl.value",
        name: "the last line of the file",
        world: World::System(|root, depth| state(root, depth, &["/etc/sysctl.d/60-stead.conf"])),
        params: || json!({"key": "net/ipv4/ip_forward", "state": "absent"}),
        fresh: |root| put(root, "/etc/sysctl.d/60-stead.conf", "net.ipv4.ip_forward = 1\n"),
        ..BASE
    },
    Case {
        operation: "kernel.module",
        name: "options and start",
        world: World::System(|root, depth| state(root, depth, &["/etc/modules-load.d", "/etc/modprobe.d"])),
        params: || json!({"name": "stead-test", "options": "a=1 b=2"}),
        // Part of the kernel, as far as anybody can see: a container cannot load modules.
        fresh: |root| {
            let release = says(Path::new("/"), "uname -r");
            put(
                root,
                &format!("/lib/modules/{}/modules.builtin", release.trim()),
                "kernel/x/stead-test.ko\n",
            );
            remove(root, "/etc/modprobe.d");
            remove(root, "/etc/modules-load.d");
        },
        half: |root| put(root, "/etc/modprobe.d/stead-stead_test.conf", "options stead_test a=0\n"),
        drifts: &[
            ("options", |root| put(root, "/etc/modprobe.d/stead-stead_test.conf", "")),
            ("start", |root| remove(root, "/etc/modules-load.d/stead-stead_test.conf")),
        ],
        ..BASE
    },
    Case {
        operation: "kernel.module",
        name: "not at the start any more",
        world: World::System(|root, depth| {
            state(root, depth, &["/etc/modules-load.d", "/etc/modules", "/etc/modprobe.d"])
        }),
        params: || json!({"name": "stead_gone", "state": "absent"}),
        fresh: |root| {
            put(root, "/etc/modules-load.d/stead-stead_gone.conf", "stead_gone\n");
            put(root, "/etc/modules-load.d/hand.conf", "# mine\nstead-gone\nloop\n");
            put(root, "/etc/modules", "loop\nstead_gone a=1\n");
            put(root, "/etc/modprobe.d/stead-stead_gone.conf", "options stead_gone a=1\n");
        },
        half: |root| remove(root, "/etc/modules-load.d/stead-stead_gone.conf"),
        kept: |root| text(root, "/etc/modules-load.d/hand.conf").replace("stead-gone\n", ""),
        ..BASE
    },
    Case {
        operation: "mount.present",
        name: "a new file system",
        world: World::System(mounts),
        params: || json!({"path": "/srv/stead test", "device": "tmpfs", "fstype": "tmpfs", "options": "size=1m,noexec,nofail"}),
        fresh: |root| {
            unmount(root);
            remove(root, "/srv/stead test");
            put(root, "/etc/fstab", "# c\nUUID=1  /  ext4 errors=remount-ro 0 1");
        },
        half: |root| {
            put(
                root,
                "/etc/fstab",
                "# c\nUUID=1  /  ext4 errors=remount-ro 0 1\ntmpfs /srv/stead\\040test tmpfs size=2m 0 0",
            );
            if is_running(root) {
                sh(root, "mkdir -p '/srv/stead test'; mount -t tmpfs -o size=2m tmpfs '/srv/stead test'");
            }
        },
        drifts: &[
            ("options", |root| {
                if is_running(root) {
                    sh(root, "mount -o remount,exec,size=3m '/srv/stead test'");
                } else {
                    put(
                        root,
                        "/etc/fstab",
                        "# c\nUUID=1  /  ext4 errors=remount-ro 0 1\ntmpfs /srv/stead\\040test tmpfs size=3m 0 0",
                    );
                }
            }),
            ("mounted", |root| {
                if is_running(root) {
                    sh(root, "umount '/srv/stead test'");
                } else {
                    remove(root, "/srv/stead test");
                }
            }),
        ],
        kept: |root| {
            text(root, "/etc/fstab").starts_with("# c\nUUID=1  /  ext4 errors=remount-ro 0 1").to_string()
        },
        ..BASE
    },
    Case {
        operation: "mount.absent",
        name: "unmounted",
        world: World::System(mounts),
        params: || json!({"path": "/srv/stead test/"}),
        fresh: |root| {
            unmount(root);
            std::fs::create_dir_all(at(root, "/srv/stead test")).unwrap();
            put(root, "/etc/fstab", "tmpfs /srv/stead\\040test tmpfs size=1m 0 0\nx /y ext4 defaults 0 2");
            if is_running(root) {
                sh(root, "mount -t tmpfs -o size=1m,nosuid tmpfs '/srv/stead test'");
            }
        },
        half: |root| {
            if is_running(root) {
                put(root, "/etc/fstab", "x /y ext4 defaults 0 2");
            }
        },
        kept: |root| text(root, "/etc/fstab").contains("x /y ext4 defaults 0 2").to_string(),
        ..BASE
    },
    Case {
        operation: "cron.entry",
        name: "put in",
        world: World::System(|root, depth| state(root, depth, &["/etc/cron.d"])),
        params: || json!({"name": "backup", "schedule": "@daily", "command": "date +%F", "env": {"A": "1"}}),
        fresh: |root| {
            remove(root, "/etc/cron.d/backup");
            put(root, "/etc/cron.d/other", "kept");
        },
        half: |root| put(root, "/etc/cron.d/backup", "@hourly root true\n"),
        drifts: &[
            ("command", |root| put(root, "/etc/cron.d/backup", "@daily root evil\n")),
            ("mode", |root| chmod(root, "/etc/cron.d/backup", 0o666)),
            ("existence", |root| remove(root, "/etc/cron.d/backup")),
        ],
        ..BASE
    },
    Case {
        operation: "cron.entry",
        name: "taken out",
        world: World::System(|root, depth| state(root, depth, &["/etc/cron.d"])),
        params: || json!({"name": "backup", "state": "absent"}),
        fresh: |root| put(root, "/etc/cron.d/backup", "@hourly root true\n"),
        ..BASE
    },
    Case {
        operation: "certificate.ca",
        name: "trusted",
        world: World::System(trusted),
        params: || json!({"name": "stead.test", "source": "ca.pem"}),
        sources: |dir| std::fs::write(dir.join("ca.pem"), AUTHORITY).unwrap(),
        fresh: |root| {
            remove(root, "/usr/local/share/ca-certificates");
            // One besides the local ones: all the real ones take seconds each time.
            put(root, "/etc/ca-certificates.conf", "mozilla/ISRG_Root_X1.crt\n");
            says(root, "mkdir -p /usr/local/share/ca-certificates; update-ca-certificates --fresh");
        },
        half: |root| {
            put(root, "/usr/local/share/ca-certificates/stead.test.crt", &AUTHORITY.replace('\n', "\r\n"));
            says(root, "update-ca-certificates --fresh");
        },
        drifts: &[
            ("file", |root| remove(root, "/usr/local/share/ca-certificates/stead.test.crt")),
            ("bundle or file", |root| {
                if is_running(root) {
                    put(root, "/etc/ssl/certs/ca-certificates.crt", "");
                } else {
                    put(root, "/usr/local/share/ca-certificates/stead.test.crt", "");
                }
            }),
        ],
        ..BASE
    },
    Case {
        operation: "certificate.ca",
        name: "not trusted any more",
        world: World::System(trusted),
        params: || json!({"name": "stead.test", "state": "absent"}),
        fresh: |root| {
            put(root, "/usr/local/share/ca-certificates/stead.test.crt", AUTHORITY);
            put(root, "/etc/ca-certificates.conf", "mozilla/ISRG_Root_X1.crt\n");
            says(root, "update-ca-certificates --fresh");
        },
        ..BASE
    },
    Case {
        operation: "config.restored",
        name: "files, made directories and a running part",
        world: World::System(|root, depth| {
            let mut found = state(root, depth, &["/srv/restored"]);
            found.insert("running".to_owned(), says(root, "cat /proc/sys/net/ipv4/ip_forward"));
            found
        }),
        params: || {
            json!({"files": {"/srv/restored/f": {"kind": "file", "mode": "0600", "text": "t"}, "/srv/restored/d/g": {"kind": "absent"}},
                "made": ["/srv/restored/d"], "running": [{"part": {"parameter": "net/ipv4/ip_forward"}, "value": "0"}]})
        },
        fresh: |root| {
            remove(root, "/srv/restored");
            put(root, "/srv/restored/d/g", "made");
            says(root, "echo 1 > /proc/sys/net/ipv4/ip_forward");
        },
        half: |root| put(root, "/srv/restored/f", "x"),
        drifts: &[
            ("content", |root| put(root, "/srv/restored/f", "hand")),
            ("mode", |root| chmod(root, "/srv/restored/f", 0o644)),
        ],
        ..BASE
    },
];

fn mounts(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut found = state(root, depth, &["/etc/fstab"]);
    let exists = at(root, "/srv/stead test").is_dir();
    found.insert("directory".to_owned(), exists.to_string());
    let shown = says(root, "findmnt -rno SOURCE,FSTYPE,OPTIONS '/srv/stead test'");
    found.insert("mounted".to_owned(), shown);
    found
}

fn unmount(root: &Path) {
    says(root, "while umount '/srv/stead test'; do :; done");
}

fn trusted(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut found = state(root, depth, &["/usr/local/share/ca-certificates"]);
    found.insert("bundle".to_owned(), says(root, "sha256sum </etc/ssl/certs/ca-certificates.crt"));
    found.insert(
        "links".to_owned(),
        says(root, "cd /etc/ssl/certs && find . -type l -printf '%p %l\\n' | sort"),
    );
    found
}
