//! The operation contract for what is a file with computed content plus a part of the running system.
//!
//! Each case runs in a container, on a whole system of its own, and under a root prefix there.

use stead_testkit::container::inside;
use stead_testkit::operation_contract::{Case, violations};
use stead_testkit::system_cases::configuration::{ACCESS, IDENTITY, RUNNING};
use stead_testkit::tree::{Depth, difference, snapshot};

pub(crate) fn cases() -> Vec<Case> {
    [ACCESS, IDENTITY, RUNNING, crate::networking::CASES].concat()
}

pub(crate) fn passes(cases: &[Case]) {
    let registry = stead_drivers::Drivers::standard();
    let found: Vec<String> = cases.iter().flat_map(|case| violations(&registry, case)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Case 17 of reach.
#[test]
fn access_keeps_the_contract() {
    inside(|| passes(ACCESS));
}

/// Case 17 of reach.
#[test]
fn identity_keeps_the_contract() {
    inside(|| passes(IDENTITY));
}

/// Case 17 of reach.
#[test]
fn the_running_system_keeps_the_contract() {
    inside(|| passes(RUNNING));
}

/// Case 17 of reach: under a root prefix a check touches nothing, not even a time.
#[test]
fn a_check_under_a_root_prefix_touches_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let (root, sources) = (dir.path().join("root"), dir.path().join("sources"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&sources).unwrap();
        (case.sources)(&sources);
        (case.fresh)(&root);
        let mut cx = stead_testkit::context::context(&sources);
        cx.root = Some(root.clone());
        let before = snapshot(&root, Depth::Everything);
        let diff = crate::state::check(&cx, case.operation, (case.params)()).unwrap();
        assert!(
            !diff.is_empty() || case.name == "files, made directories and a running part",
            "{}",
            case.operation
        );
        let touched = difference(&before, &snapshot(&root, Depth::Everything));
        assert!(touched.is_empty(), "{} ({}): {touched:?}", case.operation, case.name);
    }
}
