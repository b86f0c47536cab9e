//! `order: needs`: only needs order the steps.

use super::homelab::{Homelab, codes, steps_in};

const DIAMOND: &str = "\
api_version: v1
name: diamond
target: {from: value, value: box}
order: {apply: needs}
layers: []
steps:
  top: {run: top.sh}
  left: {run: left.sh, needs: {apply: [top]}}
  right: {run: right.sh, needs: {apply: [top]}}
  bottom: {run: bottom.sh, needs: {apply: [left, right]}}
apply: [{steps: [top, left, right, bottom]}]
";

/// Left and right end only once the other has begun: one after the other they fail.
fn diamond() -> Homelab {
    let lab = Homelab::with(DIAMOND);
    for (name, other) in [("top", "top"), ("left", "right"), ("right", "left"), ("bottom", "bottom")] {
        let wait = format!("i=0; until [ -e {other}-began ]; do i=$((i+1)); [ $i -lt 600 ]; sleep 0.1; done");
        let script = format!(
            "set -e\necho begin {name} >>order\necho says {name}\ntouch {name}-began\n{wait}\necho end {name} >>order\n"
        );
        lab.script(&format!("{name}.sh"), &script);
    }
    lab
}

/// Case 14: independent steps run at once, others after what they need.
#[test]
fn a_diamond_runs_side_by_side() {
    let lab = diamond();
    let ended = lab.stead(&["steps", "run"]).exits(0);
    let order = lab.read("order");
    let at = |line: &str| {
        order.lines().position(|found| found == line).unwrap_or_else(|| panic!("no {line}: {order}"))
    };
    for (before, after) in [
        ("end top", "begin left"),
        ("end top", "begin right"),
        ("end left", "begin bottom"),
        ("end right", "begin bottom"),
    ] {
        assert!(at(before) < at(after), "{order}");
    }
    assert!(at("begin left") < at("end right") && at("begin right") < at("end left"), "{order}");
    for name in ["top", "left", "right", "bottom"] {
        assert!(ended.stdout.contains(&format!("\n{name}.sh | says {name}\n")), "{}", ended.stdout);
    }
}

/// Case 14: what a selected step needs is added, gone without, or asked about.
#[test]
fn needs_of_a_selected_step_are_not_forgotten() {
    let lab = diamond();
    let document = lab.stead(&["steps", "run", "--only", "bottom", "--json"]).exits(2).document();
    assert!(codes(&document).iter().all(|code| code == "steps/needs"), "{document:#}");
    let help = document["diagnostics"][0]["help"].as_str().unwrap();
    assert!(help.contains("--with-needs") && help.contains("--skip-needs"), "{help}");
    let with = lab.stead(&["steps", "run", "--dry-run", "--only", "bottom", "--with-needs"]).exits(0);
    assert_eq!(steps_in(&with.stdout), ["top.sh", "left.sh", "right.sh", "bottom.sh"]);
    let without = lab.stead(&["steps", "run", "--dry-run", "--only", "bottom", "--skip-needs"]).exits(0);
    assert_eq!(steps_in(&without.stdout), ["bottom.sh"]);
    lab.stead(&["steps", "run", "--only", "bottom", "--with-needs", "--skip", "left"]).exits(2);
}
