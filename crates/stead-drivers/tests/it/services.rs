//! Services and units, inside a container. systemd cannot be init there, so a stand-in for `systemctl` answers for
//! what runs; what is enabled is the real program's, on files.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use stead_model::ErrorClass;
use stead_testkit::container::{inside, inside_with_systemd};
use stead_testkit::context::context;
use stead_testkit::stand_in::{self, Call};
use stead_testkit::system_cases::services::{CASES, fresh, set};

use crate::contract::{in_tmp, passes, sh, write};
use crate::state::{act, check, run};

/// Case 17. What runs is the stand-in's; enabling is the real `systemctl --root`.
#[test]
fn services_keep_the_contract() {
    inside(|| passes(&CASES[..4]));
}

/// Case 17.
#[test]
fn units_keep_the_contract() {
    inside(|| passes(&CASES[4..]));
}

/// Case 22: a unit that dies shows its last 20 log lines; an unknown one fails to start and is stopped already.
#[test]
fn a_unit_that_dies_shows_its_log() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let error = run(&cx, "service.started", json!({"name": "broken"})).unwrap_err();
        assert_eq!(error.class, ErrorClass::Operation);
        assert!(error.message.contains("`broken.service` did not stay up"), "{}", error.message);
        let lines: Vec<&str> = error.message.lines().filter(|line| line.contains("cannot bind")).collect();
        assert_eq!(lines.len(), 20, "{}", error.message);
        assert!(lines[19].contains("line 25"));
        let error = run(&cx, "service.started", json!({"name": "nobody"})).unwrap_err();
        assert!(error.message.contains("no service `nobody.service`"), "{}", error.message);
        for name in ["service.stopped", "service.disabled"] {
            assert!(!run(&cx, name, json!({"name": "nobody"})).unwrap().changed, "{name}");
        }
        for name in ["service.started", "service.enabled"] {
            let error = run(&cx, name, json!({"name": "masked"})).unwrap_err();
            assert!(error.message.contains("is masked"), "{}", error.message);
        }
        let error = run(&cx, "service.enabled", json!({"name": "static"})).unwrap_err();
        assert!(error.message.contains("[Install]"), "{}", error.message);
        let error = run(&cx, "service.started", json!({"name": "--now"})).unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid);
        let begun = Instant::now();
        let error = run(&cx, "service.started", json!({"name": "stuck", "timeout": "500ms"})).unwrap_err();
        assert_eq!(error.class, ErrorClass::Timeout);
        assert!(error.message.contains("activating after 500ms"), "{}", error.message);
        assert!(begun.elapsed() < Duration::from_secs(60));
    });
}

/// Case 22: without a service manager the row is skipped as unsupported, not failed.
#[test]
fn without_a_service_manager_services_are_unsupported() {
    inside(|| {
        let cx = context(Path::new("/"));
        for name in ["service.started", "service.stopped", "service.enabled", "service.disabled"] {
            let error = run(&cx, name, json!({"name": "web"})).unwrap_err();
            assert!(error.unsupported && error.message.contains("systemd"), "{name}: {}", error.message);
        }
        let error = act(&cx, "service.restarted", json!({"name": "web"})).unwrap_err();
        assert!(error.unsupported);
        let error = run(&cx, "systemd.unit", json!({"name": "x", "content": "[Service]\n"})).unwrap_err();
        assert!(error.unsupported);
    });
}

/// `service.restarted`: reload where the unit can, restart where not, and nothing if it does not run.
#[test]
fn a_restart_reloads_if_asked_and_able() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let asked = |verb: &str| stand_in::calls().iter().any(|call| call.starts_with(&format!("{verb} ")));
        let idle = act(&cx, "service.restarted", json!({"name": "web", "only_if_active": true})).unwrap();
        assert!(!idle.changed && idle.reason.is_some() && !asked("restart"));
        assert!(act(&cx, "service.restarted", json!({"name": "web"})).unwrap().changed);
        assert!(asked("restart"));
        let reloaded = act(&cx, "service.restarted", json!({"name": "web", "reload": true})).unwrap();
        assert_eq!(reloaded.data.unwrap()["reloaded"], true);
        assert!(asked("reload"));
        set("database.service", "active");
        let restarted = act(&cx, "service.restarted", json!({"name": "database", "reload": true})).unwrap();
        assert_eq!(restarted.data.unwrap()["reloaded"], false);
        let error = act(&cx, "service.restarted", json!({"name": "broken"})).unwrap_err();
        assert!(error.changed && error.message.contains("cannot bind"), "{}", error.message);
        assert!(act(&cx, "service.restarted", json!({"name": "nobody"})).is_err());
        // One whose reload never ends is waited for as long as it may take.
        set("deaf.service", "active");
        let deaf = json!({"name": "deaf", "reload": true, "timeout": "500ms"});
        let error = act(&cx, "service.restarted", deaf).unwrap_err();
        assert_eq!((error.class, error.changed), (ErrorClass::Timeout, true), "{}", error.message);
        assert!(error.message.contains("`systemctl` did not end within 500ms"), "{}", error.message);
    });
}

/// `systemd.unit`: units are read anew only if the file changed; a bad file never takes its place.
#[test]
fn units_are_verified_and_read_anew_only_on_change() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let unit = |content: &str| json!({"name": "new", "content": content});
        let there = in_tmp();
        stand_in::calls();
        assert!(run(&cx, "systemd.unit", unit("[Service]\nExecStart=/bin/true\n")).unwrap().changed);
        assert!(stand_in::calls().contains(&"daemon-reload".to_owned()));
        assert!(!run(&cx, "systemd.unit", unit("[Service]\nExecStart=/bin/true\n")).unwrap().changed);
        assert!(!stand_in::calls().contains(&"daemon-reload".to_owned()));
        let path = Path::new("/etc/systemd/system/new.service");
        let before = std::fs::read_to_string(path).unwrap();
        let error = run(&cx, "systemd.unit", unit("[Service]\nExecStrt=/bin/true\n")).unwrap_err();
        assert!(
            error.message.contains("systemd-analyze verify") && error.message.contains("ExecStrt"),
            "{}",
            error.message
        );
        assert_eq!(std::fs::read_to_string(path).unwrap(), before);
        assert!(check(&cx, "systemd.unit", json!({"name": "a/../b", "content": ""})).is_err());
        assert!(check(&cx, "systemd.unit", json!({"name": "new"})).is_err(), "no content");
        let gone = json!({"name": "new", "state": "absent", "enabled": true});
        assert!(check(&cx, "systemd.unit", gone).unwrap_err().message.contains("absent"));
        assert_eq!(in_tmp(), there);
    });
}

/// A dry run: a unit that one task would write can be started by the next.
#[test]
fn a_dry_run_sees_the_units_it_would_write() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let unit = json!({"name": "new", "content": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=a.target\n"});
        assert!(!check(&cx, "systemd.unit", unit).unwrap().is_empty());
        assert!(!check(&cx, "service.started", json!({"name": "new"})).unwrap().is_empty());
        assert!(!check(&cx, "service.enabled", json!({"name": "new"})).unwrap().is_empty());
        let error = check(&cx, "service.started", json!({"name": "other"})).unwrap_err();
        assert!(error.not_known);
    });
}

/// Cases 17 and 22 with a real systemd, where one can be init of a container.
#[test]
fn a_real_systemd_starts_stops_enables_and_shows_its_journal() {
    inside_with_systemd(|| {
        let cx = context(Path::new("/"));
        let unit = |line: &str| {
            format!("[Unit]\nDefaultDependencies=no\n[Service]\n{line}\n[Install]\nWantedBy=rig.target\n")
        };
        let changed = |name: &str, values: serde_json::Value| run(&cx, name, values).unwrap().changed;
        let web = json!({"name": "web", "content": unit("ExecStart=/bin/sleep 600"), "enabled": true, "active": true});
        assert!(changed("systemd.unit", web.clone()));
        assert!(!changed("systemd.unit", web));
        let word = |verb: &str| {
            let out = std::process::Command::new("systemctl").args([verb, "web"]).output().unwrap();
            String::from_utf8(out.stdout).unwrap().trim().to_owned()
        };
        assert_eq!((word("is-active").as_str(), word("is-enabled").as_str()), ("active", "enabled"));
        assert!(!changed("service.started", json!({"name": "web"})));
        assert!(changed("service.stopped", json!({"name": "web"})));
        assert!(!changed("service.stopped", json!({"names": ["web", "nobody-knows"]})));
        assert!(changed("service.disabled", json!({"name": "web"})));
        assert!(!changed("service.disabled", json!({"name": "web"})));
        assert_eq!((word("is-active").as_str(), word("is-enabled").as_str()), ("inactive", "disabled"));
        assert!(changed("service.started", json!({"name": "web"})));
        assert!(act(&cx, "service.restarted", json!({"name": "web", "reload": true})).unwrap().changed);
        assert_eq!(word("is-active"), "active");
        let broken = unit("ExecStart=/bin/sh -c 'echo cannot bind to port 80; exit 3'");
        assert!(changed("systemd.unit", json!({"name": "broken", "content": broken})));
        let error = run(&cx, "service.started", json!({"name": "broken"})).unwrap_err();
        assert!(error.message.contains("cannot bind to port 80"), "{}", error.message);
        let error = run(&cx, "service.started", json!({"name": "nobody-knows"})).unwrap_err();
        assert!(error.message.contains("no service"), "{}", error.message);
        assert!(changed("systemd.unit", json!({"name": "web", "state": "absent"})));
        assert!(!Path::new("/etc/systemd/system/web.service").exists());
        assert_eq!(word("is-active"), "inactive");
        // A file that is as it should be and that systemd has not read: a run was cut off between the two.
        let content = unit("ExecStart=/bin/sleep 601");
        let stale = json!({"name": "stale", "content": content.clone()});
        sh(
            Path::new("/"),
            "printf '[Service]\nExecStart=/bin/sleep 602\n' >/etc/systemd/system/stale.service",
        );
        sh(Path::new("/"), "systemctl daemon-reload; systemctl start stale");
        write("/etc/systemd/system/stale.service", &content);
        let predicted = check(&cx, "systemd.unit", stale.clone()).unwrap();
        assert!(predicted.to_json().to_string().contains("read by systemd"), "{}", predicted.to_json());
        assert!(
            check(&cx, "systemd.unit", stale.clone()).unwrap().is_empty(),
            "it sees what it has predicted"
        );
        let cx = context(Path::new("/"));
        assert!(run(&cx, "systemd.unit", stale.clone()).unwrap().changed);
        assert!(!run(&cx, "systemd.unit", stale).unwrap().changed);
        let out = std::process::Command::new("systemctl").args(["show", "-p", "ExecStart", "stale"]).output();
        assert!(String::from_utf8(out.unwrap().stdout).unwrap().contains("sleep 601"));
        // A script of the old kind, which is enabled by links of its own.
        sh(
            Path::new("/"),
            "printf '#!/bin/sh\n### BEGIN INIT INFO\n# Provides: elder\n# Required-Start:\n# Required-Stop:\n\
             # Default-Start: 2 3 4 5\n# Default-Stop: 0 1 6\n### END INIT INFO\n' >/etc/init.d/elder
             chmod 755 /etc/init.d/elder; systemctl daemon-reload",
        );
        for name in ["service.enabled", "service.disabled", "service.enabled"] {
            assert!(changed(name, json!({"name": "elder"})), "{name}");
            assert!(!changed(name, json!({"name": "elder"})), "{name}, again");
        }
    });
}

/// OpenRC, by recorded calls.
#[test]
fn openrc_starts_and_enables() {
    inside(|| {
        let cx = context(Path::new("/"));
        sh(Path::new("/"), "mkdir -p /run/openrc /etc/init.d /etc/runlevels/default; touch /etc/init.d/web");
        let up = "echo after >/run/transcript/rc-service/phase";
        stand_in::transcript(
            "rc-service",
            &[
                Call::fails("web status", 3, " * status: stopped\n", ""),
                Call::says("web describe", " * web: a server\n"),
                Call::does("web start", up),
            ],
            &[
                Call::says("web status", " * status: started\n"),
                Call::does("web stop", "rm /run/transcript/rc-service/phase"),
            ],
        );
        let link = "/etc/runlevels/default/web";
        stand_in::transcript(
            "rc-update",
            &[
                Call::does("add web default", "ln -s /etc/init.d/web /etc/runlevels/default/web"),
                Call::does("del web default", "rm /etc/runlevels/default/web"),
            ],
            &[],
        );
        for (name, opposite) in
            [("service.started", "service.stopped"), ("service.enabled", "service.disabled")]
        {
            assert!(!run(&cx, opposite, json!({"name": "web"})).unwrap().changed, "{opposite}");
            assert!(run(&cx, name, json!({"name": "web"})).unwrap().changed, "{name}");
            assert!(!run(&cx, name, json!({"name": "web"})).unwrap().changed, "{name}, again");
        }
        assert!(Path::new(link).symlink_metadata().is_ok());
        assert!(run(&cx, "service.disabled", json!({"name": "web"})).unwrap().changed);
        assert!(run(&cx, "service.stopped", json!({"name": "web"})).unwrap().changed);
        let error = run(&cx, "service.started", json!({"name": "nobody"})).unwrap_err();
        assert!(error.message.contains("no service `nobody`"), "{}", error.message);
    });
}
