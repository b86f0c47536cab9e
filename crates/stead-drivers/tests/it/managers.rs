//! The package managers other than apt, by recorded transcripts: their exact calls, and what they answer.

use std::path::Path;

use serde_json::json;
use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::stand_in::{Call, transcript};

use crate::contract::{sh, write};
use crate::state::{check, run};

/// A system that is not Debian's.
fn foreign() -> OpContext {
    sh(Path::new("/"), "mv /var/lib/dpkg/status /var/lib/dpkg/status.hidden");
    context(Path::new("/"))
}

/// `nginx` comes with what it needs, once; a second run changes nothing; the inverse names what came.
fn comes_once(cx: &OpContext, versions: serde_json::Value) {
    let values = json!({"names": ["nginx"]});
    let predicted = check(&context(Path::new("/")), "package.present", values.clone()).unwrap();
    assert_eq!(predicted.to_json()["after"], versions);
    let ran = run(cx, "package.present", values.clone()).unwrap();
    assert!(ran.changed);
    assert_eq!(ran.applied.data.unwrap()["installed"], versions);
    assert!(!run(cx, "package.present", values).unwrap().changed);
}

fn refuses(cx: &OpContext, name: &str, values: serde_json::Value, says: &str) {
    let error = run(cx, name, values).unwrap_err();
    assert!(error.message.contains(says), "{says}: {}", error.message);
}

#[test]
fn dnf_installs_and_removes() {
    inside(|| {
        let cx = foreign();
        sh(Path::new("/"), "mkdir -p /var/lib/rpm");
        let installed = "-q --qf %{NAME}\\t%{EVR}\\n -- nginx";
        transcript(
            "rpm",
            &[Call::fails(installed, 1, "package nginx is not installed\n", "")],
            &[
                Call::says(installed, "nginx\t1:1.24.0-1.fc39\n"),
                Call::says("-q --qf %{NAME}\\t%{EVR}\\n -- pcre2", "pcre2\t10.42-1.fc39\n"),
            ],
        );
        let table = "Dependencies resolved.\n================================\n Package      Arch    Version          Repo     Size\n================================\nInstalling:\n nginx        x86_64  1:1.24.0-1.fc39  fedora   40 k\nInstalling dependencies:\n pcre2        x86_64  10.42-1.fc39     fedora  233 k\n\nTransaction Summary\n================================\nInstall  2 Packages\n\nOperation aborted.\n";
        let removal = "Dependencies resolved.\n================================\nRemoving:\n pcre2        x86_64  10.42-1.fc39     @fedora  600 k\nRemoving dependent packages:\n nginx        x86_64  1:1.24.0-1.fc39  @fedora  153 k\n\nTransaction Summary\n";
        let query = "--color=never -q repoquery --qf %{name}\\t%{evr}\\n ";
        let query_nginx: &'static str = Box::leak(format!("{query}nginx").into_boxed_str());
        let query_nope: &'static str = Box::leak(format!("{query}nope").into_boxed_str());
        transcript(
            "dnf",
            &[
                Call::says(query_nginx, "nginx\t1:1.22.0-1.fc39\nnginx\t1:1.24.0-1.fc39\n"),
                Call::says(query_nope, ""),
                Call::fails(
                    "--color=never --assumeno --setopt=install_weak_deps=False install --allowerasing nginx-1:1.24.0-1.fc39",
                    1,
                    table,
                    "",
                ),
                Call::does(
                    "--color=never -y --setopt=install_weak_deps=False install nginx-1:1.24.0-1.fc39",
                    "echo after >/run/transcript/rpm/phase; echo after >/run/transcript/dnf/phase",
                ),
                Call::does("--color=never makecache --refresh", ""),
            ],
            &[Call::fails("--color=never --assumeno remove --noautoremove pcre2", 1, removal, "")],
        );
        comes_once(&cx, json!({"nginx": "1:1.24.0-1.fc39", "pcre2": "10.42-1.fc39"}));
        refuses(&cx, "package.absent", json!({"names": ["pcre2"]}), "would also remove nginx");
        transcript("rpm", &[Call::fails("-q --qf %{NAME}\\t%{EVR}\\n -- nope", 1, "", "")], &[]);
        refuses(&cx, "package.present", json!({"names": ["nope"]}), "no package `nope`");
    });
}

#[test]
fn apk_installs_and_removes() {
    inside(|| {
        let cx = foreign();
        std::fs::create_dir_all("/lib/apk/db").unwrap();
        write("/lib/apk/db/installed", "P:musl\nV:1.2.4-r2\n\n");
        transcript(
            "apk",
            &[
                Call::says(
                    "--no-progress policy nginx",
                    "nginx policy:\n  1.24.0-r7:\n    https://example.org/v3.18/main\n",
                ),
                Call::says(
                    "--no-progress add --simulate nginx=1.24.0-r7",
                    "(1/2) Installing pcre2 (10.42-r1)\n(2/2) Installing nginx (1.24.0-r7)\nOK: 9 MiB in 17 packages\n",
                ),
                Call::does(
                    "--no-progress add nginx=1.24.0-r7",
                    "printf 'P:pcre2\\nV:10.42-r1\\n\\nP:nginx\\nV:1.24.0-r7\\n\\n' >>/lib/apk/db/installed",
                ),
                Call::says(
                    "--no-progress del --simulate pcre2",
                    "World updated, but the following packages are not removed due to:\n  pcre2: nginx\n\nOK: 9 MiB\n",
                ),
            ],
            &[],
        );
        comes_once(&cx, json!({"nginx": "1.24.0-r7", "pcre2": "10.42-r1"}));
        refuses(&cx, "package.absent", json!({"names": ["pcre2"]}), "nginx");
    });
}

#[test]
fn pacman_installs_and_removes() {
    inside(|| {
        let cx = foreign();
        sh(Path::new("/"), "mkdir -p /var/lib/pacman/local");
        transcript(
            "pacman",
            &[
                Call::fails(
                    "--noconfirm --color never -Q nginx",
                    1,
                    "",
                    "error: package 'nginx' was not found\n",
                ),
                Call::fails(
                    "--noconfirm --color never -Q nginx pcre2",
                    1,
                    "",
                    "error: package 'nginx' was not found\n",
                ),
                Call::says(
                    "--noconfirm --color never -Sdd --print --print-format %n %v nginx",
                    "nginx 1.24.0-1\n",
                ),
                Call::says(
                    "--noconfirm --color never -S --needed nginx --print --print-format %n %v",
                    "pcre2 10.42-2\nnginx 1.24.0-1\n",
                ),
                Call::does(
                    "--noconfirm --color never -S --needed nginx",
                    "echo after >/run/transcript/pacman/phase",
                ),
            ],
            &[
                Call::says("--noconfirm --color never -Q nginx", "nginx 1.24.0-1\n"),
                Call::says("--noconfirm --color never -Q pcre2", "pcre2 10.42-2\n"),
                Call::says(
                    "--noconfirm --color never -Rc pcre2 --print --print-format %n %v",
                    "pcre2 10.42-2\nnginx 1.24.0-1\n",
                ),
            ],
        );
        comes_once(&cx, json!({"nginx": "1.24.0-1", "pcre2": "10.42-2"}));
        refuses(&cx, "package.absent", json!({"names": ["pcre2"]}), "would also remove nginx");
        refuses(&cx, "package.present", json!({"names": ["nginx=1.0"]}), "newest version only");
    });
}

#[test]
fn brew_installs_and_removes() {
    inside(|| {
        let cx = foreign();
        let info =
            r#"{"formulae":[{"name":"nginx","versions":{"stable":"1.25.1"},"revision":1}],"casks":[]}"#;
        let all = r#"{"formulae":[{"name":"pcre2","versions":{"stable":"10.42"},"revision":0},{"name":"nginx","versions":{"stable":"1.25.1"},"revision":1}],"casks":[]}"#;
        transcript(
            "brew",
            &[
                Call::fails("list --versions --formula nginx", 1, "", ""),
                Call::fails("list --versions --formula pcre2 nginx", 1, "", ""),
                Call::says("info --json=v2 --formula nginx", info),
                Call::says("info --json=v2 --formula pcre2 nginx", all),
                Call::says("deps --union --formula nginx", "pcre2\n"),
                Call::does("install --formula nginx", "echo after >/run/transcript/brew/phase"),
            ],
            &[
                Call::says("list --versions --formula nginx", "nginx 1.25.1_1\n"),
                Call::says("list --versions --formula pcre2", "pcre2 10.42\n"),
                Call::says("list --versions --formula pcre2 nginx", "pcre2 10.42\nnginx 1.25.1_1\n"),
                Call::says("uses --installed --recursive pcre2", "nginx\n"),
            ],
        );
        comes_once(&cx, json!({"nginx": "1.25.1_1", "pcre2": "10.42"}));
        refuses(&cx, "package.absent", json!({"names": ["pcre2"]}), "would also remove nginx");
    });
}

/// A host without any of them: the row is skipped.
#[test]
fn without_a_package_manager_packages_are_unsupported() {
    inside(|| {
        let error = check(&foreign(), "package.present", json!({"names": ["nginx"]})).unwrap_err();
        assert!(error.unsupported && error.message.contains("pacman"), "{}", error.message);
    });
}

/// A root prefix is given to each manager by its own option; the database says whose the prefix is.
#[test]
fn root_prefixes_go_through_the_managers_own_options() {
    inside(|| {
        let root = |name: &str, database: &str| {
            sh(Path::new("/"), &format!("mkdir -p /srv/{name}{database}"));
            OpContext { root: Some(format!("/srv/{name}").into()), ..context(Path::new("/")) }
        };
        let unchanged =
            |cx: &OpContext| !run(cx, "package.present", json!({"names": ["nginx"]})).unwrap().changed;
        transcript(
            "pacman",
            &[Call::says("--root /srv/arch --noconfirm --color never -Q nginx", "nginx 1-1\n")],
            &[],
        );
        assert!(unchanged(&root("arch", "/var/lib/pacman/local")));
        transcript(
            "rpm",
            &[Call::says("--root /srv/fedora -q --qf %{NAME}\\t%{EVR}\\n -- nginx", "nginx\t1-1\n")],
            &[],
        );
        let query = "--color=never --installroot=/srv/fedora -q repoquery --qf %{name}\\t%{evr}\\n nginx";
        transcript("dnf", &[Call::says(query, "nginx\t1-1\n")], &[]);
        let fedora = root("fedora", "/usr/lib/sysimage/rpm");
        assert!(unchanged(&fedora));
        assert!(check(&fedora, "package.latest", json!({"names": ["nginx"]})).unwrap().is_empty());
        let alpine = root("alpine", "/lib/apk/db");
        write("/srv/alpine/lib/apk/db/installed", "P:nginx\nV:1-r0\n\n");
        let policy = "nginx policy:\n  1-r0:\n    lib/apk/db/installed\n    https://example.org/main\n";
        transcript("apk", &[Call::says("--root /srv/alpine --no-progress policy nginx", policy)], &[]);
        assert!(unchanged(&alpine));
        assert!(check(&alpine, "package.latest", json!({"names": ["nginx"]})).unwrap().is_empty());
        let error =
            check(&root("empty", "/etc"), "package.present", json!({"names": ["nginx"]})).unwrap_err();
        assert!(error.unsupported, "{}", error.message);
    });
}
