//! Walking a graph of nothing, whole program against whole program: terraform and its built-in `terraform_data`.

use std::process::Command;
use std::time::Duration;

use crate::Effort;
use crate::sample::{median, time};
use crate::shell::{is_installed, run, stead, write};
use crate::table::Table;

/// The line about terraform.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let tasks = if effort == Effort::Quick { 200 } else { 1_000 };
    let what = format!("{tasks} no-op tasks (`assert`), program start to end");
    if !is_installed("terraform") {
        return table.skipped(&what, "terraform is not installed");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let plan = directory.path().join("plan.yaml");
    write(&plan, &assertions(tasks));
    let (mut ours, mut theirs): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for round in 0..3 {
        ours.push(time(|| run(stead(&plan, &directory.path().join(format!("state-{round}"))))));
        let root = directory.path().join(format!("terraform-{round}"));
        std::fs::create_dir(&root).expect("the temporary directory can be written to");
        write(&root.join("main.tf"), &resources(tasks));
        run(Command::new("terraform").args(["init", "-input=false"]).current_dir(&root));
        let mut apply = Command::new("terraform");
        apply.args(["apply", "-input=false", "-auto-approve", "-parallelism=4"]).current_dir(&root);
        theirs.push(time(|| run(apply)));
    }
    table.within(&what, median(ours).as_secs_f64(), ("terraform", median(theirs).as_secs_f64()), 1.0);
}

fn assertions(tasks: usize) -> String {
    let mut text = "api_version: v1\nname: nothing\nlimits: {per_target: 4}\ntasks:\n".to_owned();
    for task in 0..tasks {
        text += &format!("  - name: t{task}\n    op: assert\n    params: {{that: [\"true\"]}}\n");
    }
    text
}

fn resources(tasks: usize) -> String {
    (0..tasks).map(|task| format!("resource \"terraform_data\" \"t{task}\" {{}}\n")).collect()
}
