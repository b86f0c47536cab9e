//! From the report of a run of `stead test` to what it says of the manifest.

use std::collections::BTreeMap;

use stead_model::node::NodeStatus;
use stead_model::node::test_report::{Check, TestPhase, TestReport, TestStatus, TestedNode};
use stead_model::report::TaskRow;
use stead_model::{ExitCode, NodeName, Report, Status};

/// What a test is about.
#[derive(Clone, Debug)]
pub struct Tested<'a> {
    /// The manifest's name.
    pub manifest: &'a str,
    /// The host's name.
    pub host: &'a str,
    /// How nodes are configured where they do not say it themselves.
    pub mode: &'a str,
    /// The nodes, in the order they are made, each with the node of this level that it is in.
    pub nodes: &'a [(NodeName, NodeName)],
    /// What was looked at, by node.
    pub checks: &'a BTreeMap<NodeName, Vec<Check>>,
    /// What was said of nodes, by node.
    pub lives: &'a BTreeMap<NodeName, Lived>,
}

/// What the levels below said of one of their nodes, over a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lived {
    /// Whether it became what it should be.
    pub completed: bool,
    /// Why it did not.
    pub not_made: Option<String>,
    /// Whether it is gone.
    pub destroyed: bool,
    /// Why it could not go.
    pub not_removed: Option<String>,
}

impl Lived {
    /// Takes in what is said of the node next.
    pub fn take(&mut self, status: NodeStatus, error: Option<&str>) {
        let error = || Some(error.unwrap_or(status.word()).to_owned());
        match status {
            NodeStatus::Completed => (self.completed, self.not_made) = (true, None),
            NodeStatus::Failed if self.completed => self.not_removed = error(),
            NodeStatus::Failed => self.not_made = self.not_made.take().or_else(error),
            NodeStatus::Destroyed => (self.destroyed, self.not_removed) = (true, None),
            NodeStatus::Pending | NodeStatus::Running | NodeStatus::Skipped => {}
        }
    }

    /// Returns how a phase of the node ended, if it said so itself.
    fn of(&self, phase: &str) -> Option<(TestStatus, String)> {
        let (done, error) = match phase {
            "create" => (self.completed, &self.not_made),
            "destroy" => (self.destroyed, &self.not_removed),
            _ => return None,
        };
        match error {
            Some(error) => Some((TestStatus::Failed, error.clone())),
            None => done.then(|| (TestStatus::Passed, String::new())),
        }
    }
}

const PHASES: [(&str, &str); 3] = [
    ("create", "make the nodes and have them become their specs"),
    ("verify", "compare them with what they should be"),
    ("destroy", "remove them"),
];

/// Returns what `report` says of the manifest.
pub fn test_report(report: &Report, tested: &Tested<'_>) -> TestReport {
    let phases = PHASES.iter().map(|(name, description)| {
        let rows: Vec<&TaskRow> = report.tasks.iter().filter(|row| phase_of(row) == *name).collect();
        phase(name, description, &rows)
    });
    let nodes = tested.nodes.iter().map(|(node, root)| tested_node(&report.tasks, tested, node, root));
    TestReport {
        scenario: format!("manifest-test-{}", tested.manifest),
        manifest: tested.manifest.to_owned(),
        host: tested.host.to_owned(),
        run: report.run_id.clone(),
        mode: tested.mode.to_owned(),
        success: report.exit_code == ExitCode::Success,
        started_at: report.started_at,
        finished_at: report.finished_at,
        duration: seconds(report.duration_ms),
        phases: phases.collect(),
        nodes: nodes.collect(),
    }
}

/// Returns what is known of `node`, which is in `root` of this level.
fn tested_node(rows: &[TaskRow], tested: &Tested<'_>, node: &NodeName, root: &NodeName) -> TestedNode {
    let checks = tested.checks.get(node).cloned().unwrap_or_default();
    let lived = tested.lives.get(node);
    let phases = PHASES.iter().map(|(name, description)| {
        let is_own = |row: &&TaskRow| phase_of(row) == *name && is_of(row, node, root);
        let own: Vec<&TaskRow> = rows.iter().filter(is_own).collect();
        let mut phase = phase(name, description, &own);
        if node == root && !own.is_empty() {
            return phase;
        }
        // Below this level, and on another machine, counts what was said of the node itself: the task here is about all of them.
        let told = match *name {
            "verify" => of_checks(&checks),
            name => lived.and_then(|lived| lived.of(name)),
        };
        match told {
            Some((status, message)) => (phase.status, phase.message) = (status, message),
            None if phase.status == TestStatus::Failed => phase.status = TestStatus::Skipped,
            None => {}
        }
        phase
    });
    TestedNode { name: node.clone(), phases: phases.collect(), checks: checks.clone() }
}

/// Returns how a node was found; nothing if nobody looked.
fn of_checks(checks: &[Check]) -> Option<(TestStatus, String)> {
    let failed = checks.iter().find(|check| check.status == TestStatus::Failed);
    match failed {
        Some(check) => Some((TestStatus::Failed, format!("{}: {}", check.check, check.message))),
        None => (!checks.is_empty()).then(|| (TestStatus::Passed, String::new())),
    }
}

/// Returns the phase a task belongs to.
fn phase_of(row: &TaskRow) -> &'static str {
    match row.name.as_str().rsplit('.').next() {
        Some("verify" | "verified") => "verify",
        Some("destroy" | "release") => "destroy",
        Some(_) | None => "create",
    }
}

/// Whether a task is about `node`, which is in `root` of this level.
fn is_of(row: &TaskRow, node: &NodeName, root: &NodeName) -> bool {
    let mut parts = row.name.as_str().split('.');
    let (first, second, third) = (parts.next(), parts.next(), parts.next());
    if node == root {
        let is_link =
            second == Some("link") && (first == Some(node.as_str()) || third == Some(node.as_str()));
        return is_link || (first == Some(node.as_str()) && second != Some("children"));
    }
    first == Some(root.as_str()) && second == Some("children")
}

fn phase(name: &str, description: &str, rows: &[&TaskRow]) -> TestPhase {
    // What was cancelled was so because of what failed.
    let of = |status| rows.iter().find(move |row| row.status == status);
    let broken = of(Status::Failed).or_else(|| of(Status::Cancelled));
    let has_run = rows.iter().any(|row| matches!(row.status, Status::Changed | Status::Unchanged));
    let (status, message) = match broken {
        Some(row) => {
            let error = row.error.clone().unwrap_or_else(|| row.status.as_str().to_owned());
            (TestStatus::Failed, format!("{}: {error}", row.name))
        }
        None if has_run => (TestStatus::Passed, String::new()),
        None => {
            let reason = rows.iter().find_map(|row| row.reason.clone());
            (TestStatus::Skipped, reason.unwrap_or_else(|| "not run".to_owned()))
        }
    };
    let ran = || rows.iter().filter_map(|row| Some((row.started_at?, row.duration)));
    let first = ran().map(|(start, _)| start).min();
    let millis = first.map_or(0, |first| {
        let end = |(start, took): (stead_model::time::Timestamp, core::time::Duration)| {
            start.millis_since(first) + u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
        };
        ran().map(end).max().unwrap_or(0)
    });
    let (name, description) = (name.to_owned(), description.to_owned());
    TestPhase { name, description, status, message, duration: seconds(millis) }
}

fn seconds(millis: u64) -> f64 {
    core::time::Duration::from_millis(millis).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::TaskName;
    use stead_model::plan::Section;

    fn row(name: &str, status: Status) -> TaskRow {
        let error = (status == Status::Failed).then(|| "broken".to_owned());
        TaskRow { status, error, ..TaskRow::not_run(TaskName::parse(name).unwrap(), Section::Main) }
    }

    fn statuses(rows: &[TaskRow]) -> Vec<&'static str> {
        PHASES
            .iter()
            .map(|(name, description)| {
                let rows: Vec<&TaskRow> = rows.iter().filter(|row| phase_of(row) == *name).collect();
                phase(name, description, &rows).status.word()
            })
            .collect()
    }

    /// Case 26: good; create failed with and without cleanup; verify failed.
    #[test]
    fn phases_say_how_they_ended() {
        let test = |create, verify, destroy| {
            statuses(&[
                row("edge.create", Status::Changed),
                row("edge.config", create),
                row("edge.verify", verify),
                row("edge.destroy", destroy),
            ])
        };
        let (good, bad, no) = (Status::Changed, Status::Failed, Status::Skipped);
        assert_eq!(test(good, Status::Unchanged, good), ["passed", "passed", "passed"]);
        assert_eq!(test(bad, no, good), ["failed", "skipped", "passed"]);
        assert_eq!(test(bad, no, no), ["failed", "skipped", "skipped"]);
        assert_eq!(test(good, bad, good), ["passed", "failed", "passed"]);
    }

    #[test]
    fn a_phase_names_what_failed_and_not_what_was_cancelled_for_it() {
        let rows = [
            row("a.create", Status::Cancelled),
            row("b.create", Status::Failed),
            row("c.create", Status::Cancelled),
        ];
        let of = |rows: &[&TaskRow]| phase("create", "", rows).message;
        assert_eq!(of(&[&rows[0], &rows[1], &rows[2]]), "b.create: broken");
        assert_eq!(of(&[&rows[0], &rows[2]]), "a.create: cancelled");
    }

    #[test]
    fn tasks_belong_to_the_nodes_they_name() {
        let name = |text: &str| NodeName::parse(text).unwrap();
        let (a, b, inner) = (name("a"), name("b"), name("inner"));
        let of =
            |task: &str, node: &NodeName, root: &NodeName| is_of(&row(task, Status::Changed), node, root);
        assert!(of("a.create", &a, &a) && !of("a.create", &b, &b));
        assert!(of("a.link.b", &a, &a) && of("a.link.b", &b, &b));
        assert!(of("a.children.create", &inner, &a) && !of("a.children.create", &a, &a));
    }

    /// Case 26, two levels: a node below is what it said of itself, not what the task above says of all of them.
    #[test]
    fn nodes_below_have_phases_of_their_own() {
        let name = |text: &str| NodeName::parse(text).unwrap();
        let (host, good, bad, late) = (name("host"), name("good"), name("bad"), name("late"));
        let mut lives: BTreeMap<NodeName, Lived> = BTreeMap::new();
        for (node, status, error) in [
            (&good, NodeStatus::Completed, None),
            (&bad, NodeStatus::Failed, Some("no room")),
            (&late, NodeStatus::Skipped, Some("not started")),
            (&good, NodeStatus::Destroyed, None),
            (&bad, NodeStatus::Destroyed, None),
        ] {
            lives.entry(node.clone()).or_default().take(status, error);
        }
        let tested = Tested {
            manifest: "m",
            host: "local",
            mode: "push",
            nodes: &[],
            checks: &BTreeMap::new(),
            lives: &lives,
        };
        let rows = [
            row("host.create", Status::Changed),
            row("host.children.create", Status::Failed),
            row("host.children.destroy", Status::Changed),
            row("host.destroy", Status::Changed),
        ];
        let ended = |node: &NodeName| -> Vec<(&'static str, String)> {
            let tested = tested_node(&rows, &tested, node, &host);
            tested.phases.iter().map(|phase| (phase.status.word(), phase.message.clone())).collect()
        };
        assert_eq!(ended(&good)[0], ("passed", String::new()));
        assert_eq!(ended(&bad)[0], ("failed", "no room".to_owned()));
        assert_eq!(ended(&late)[0].0, "skipped");
        assert_eq!(ended(&bad)[2].0, "passed", "it went with the others");
        // A root that another machine makes has no task of its own either.
        let apart = [row("host_other.create", Status::Changed), row("host_other.destroy", Status::Changed)];
        let root = tested_node(&apart, &tested, &good, &good);
        let words: Vec<&str> = root.phases.iter().map(|phase| phase.status.word()).collect();
        assert_eq!((words[0], words[2]), ("passed", "passed"));
    }
}
