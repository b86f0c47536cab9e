//! Steps: planning many of them, and what one costs beyond its script.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Effort;
use crate::sample::{median, time};
use crate::shell::{binary, run, write};
use crate::table::{Table, micros, millis};

/// The lines about steps.
pub(crate) fn measure(_: Effort, table: &mut Table) {
    plan(table);
    overhead(table);
}

/// A thousand steps and ten layers of two hundred keys, planned by the whole program.
fn plan(table: &mut Table) {
    const SAMPLES: usize = 20;
    let lab = Lab::make(1_000, 10, 200);
    let taken = (0..SAMPLES).map(|_| time(|| run(lab.stead(&["--dry-run", "--json"]))));
    let median = median(taken.collect()).as_secs_f64();
    let what = "dry run of 1,000 steps, 10 layers of 200 keys, program start to end";
    table.at_most(what, millis(median), median * 1e3, "50 ms".into(), 50.0);
}

/// Two hundred scripts that do nothing, against starting and waiting for them one after the other.
fn overhead(table: &mut Table) {
    const STEPS: usize = 200;
    const SAMPLES: usize = 5;
    let lab = Lab::make(STEPS, 1, 10);
    let ours = median((0..SAMPLES).map(|_| time(|| run(lab.stead(&[])))).collect()).as_secs_f64();
    let scripts: Vec<PathBuf> = (0..STEPS).map(|step| lab.script(step)).collect();
    let loop_alone = || {
        for script in &scripts {
            let mut script = Command::new(script);
            script.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(script.status().is_ok_and(|status| status.success()), "a script that does nothing works");
        }
    };
    let theirs = median((0..SAMPLES).map(|_| time(loop_alone)).collect()).as_secs_f64();
    let each = (ours - theirs) / STEPS as f64;
    let what = format!("one of {STEPS} steps, beyond its script ({} each)", micros(theirs / STEPS as f64));
    table.at_most(&what, micros(each), each * 1e3, "2 ms".into(), 2.0);
}

/// A catalogue with its scripts and layers on disk.
struct Lab(tempfile::TempDir);

impl Lab {
    fn make(steps: usize, layers: usize, keys: usize) -> Self {
        let lab = Self(tempfile::tempdir().expect("a temporary directory"));
        std::fs::create_dir(lab.root().join("scripts")).expect("the temporary directory can be written to");
        let mut text = "api_version: v1\nname: bench\nundeclared: allow\nlayers:\n".to_owned();
        for layer in 0..layers {
            let lines = (0..keys)
                .map(|key| format!("KEY_{key}=\"layer {layer} of ${{KEY_{}:-none}}\"\n", keys + key));
            write(&lab.root().join(format!("{layer}.env")), &lines.collect::<String>());
            write_line(&mut text, &format!("  - {{ file: {layer}.env }}"));
        }
        write_line(&mut text, "steps:");
        for step in 0..steps {
            let path = lab.script(step);
            write(&path, "#!/bin/sh\nexit 0\n");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, executable).expect("our own file");
            write_line(&mut text, &format!("  s{step}: {{ run: scripts/{step}_step.sh }}"));
        }
        let ids: Vec<String> = (0..steps).map(|step| format!("s{step}")).collect();
        write_line(&mut text, &format!("apply:\n  - {{ phase: all, steps: [{}] }}", ids.join(", ")));
        write(&lab.root().join("steps.yaml"), &text);
        lab
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn script(&self, step: usize) -> PathBuf {
        self.root().join(format!("scripts/{step}_step.sh"))
    }

    fn stead(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["steps", "run"]).args(words).current_dir(self.root());
        command.env("XDG_STATE_HOME", self.root().join("state"));
        command
    }
}

fn write_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to memory does not fail");
}
