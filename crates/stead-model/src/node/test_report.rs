//! What a test of nodes found: create, verify and destroy, node by node, for programs and for people.

use serde::{Deserialize, Serialize};

use crate::id::{NodeName, RunId};
use crate::time::Timestamp;

/// How a phase or a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestStatus {
    /// As it should be.
    Passed,
    /// Not as it should be.
    Failed,
    /// Nobody looked.
    Skipped,
}

impl TestStatus {
    /// Returns the word used in files and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub check: String,
    /// How it is.
    pub status: TestStatus,
    /// What was found.
    pub message: String,
}

impl Check {
    /// Returns a check that found `message`, which is as it should be or not.
    pub fn new(check: &str, passed: bool, message: impl Into<String>) -> Self {
        let status = if passed { TestStatus::Passed } else { TestStatus::Failed };
        Self { check: check.to_owned(), status, message: message.into() }
    }

    /// Returns a check that was left out.
    pub fn skipped(check: &str, message: impl Into<String>) -> Self {
        Self { check: check.to_owned(), status: TestStatus::Skipped, message: message.into() }
    }
}

/// One phase, of the whole test or of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestPhase {
    /// `create`, `verify` or `destroy`.
    pub name: String,
    /// What it is.
    pub description: String,
    /// How it ended.
    pub status: TestStatus,
    /// Why, if it failed or was left out.
    pub message: String,
    /// Seconds.
    pub duration: f64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestedNode {
    /// Its name.
    pub name: NodeName,
    /// How its phases ended.
    pub phases: Vec<TestPhase>,
    /// What was looked at.
    pub checks: Vec<Check>,
}

/// What a test of nodes found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestReport {
    /// `manifest-test-NAME`.
    pub scenario: String,
    /// The manifest.
    pub manifest: String,
    /// The host.
    pub host: String,
    /// The run.
    pub run: Option<RunId>,
    /// How nodes were configured where they do not say it themselves.
    pub mode: String,
    /// Whether all went well.
    pub success: bool,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Seconds.
    pub duration: f64,
    /// The phases.
    pub phases: Vec<TestPhase>,
    /// The nodes, in the order they are made.
    pub nodes: Vec<TestedNode>,
}

impl TestReport {
    /// Returns the name of its files without what follows the last dot; `number` is 1 unless that is taken.
    pub fn file_stem(&self, number: u32) -> String {
        let at = self.started_at.to_string();
        let digits: String = at.chars().take(19).filter(char::is_ascii_digit).collect();
        let (day, time) = digits.split_at_checked(8).unwrap_or((&digits, ""));
        let again = if number > 1 { format!("-{number}") } else { String::new() };
        let ended = if self.success { "passed" } else { "failed" };
        format!("{day}-{time}{again}.manifest.{}.{ended}", self.manifest)
    }

    /// Returns it for people.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        let status = if self.success { "passed" } else { "failed" };
        text.push_str(&format!(
            "# Test of manifest {}\n\n- Host: {}\n- Status: {status}\n- Date: {}\n- Duration: {:.1} s\n\n\
             ## Phases\n\n| phase | status | duration | message |\n|---|---|---|---|\n",
            self.manifest, self.host, self.started_at, self.duration
        ));
        for phase in &self.phases {
            let message = cell(&phase.message);
            text.push_str(&format!(
                "| {} | {} | {:.1} s | {message} |\n",
                phase.name,
                phase.status.word(),
                phase.duration
            ));
        }
        text.push_str("\n## Nodes\n\n| node | create | verify | destroy | checks |\n|---|---|---|---|---|\n");
        for node in &self.nodes {
            let of = |name: &str| {
                node.phases.iter().find(|phase| phase.name == name).map_or("-", |phase| phase.status.word())
            };
            let passed = node.checks.iter().filter(|check| check.status == TestStatus::Passed).count();
            text.push_str(&format!(
                "| {} | {} | {} | {} | {passed} of {} passed |\n",
                node.name,
                of("create"),
                of("verify"),
                of("destroy"),
                node.checks.len()
            ));
        }
        self.write_failures(&mut text);
        text
    }

    fn write_failures(&self, text: &mut String) {
        let mut failures = String::new();
        for node in &self.nodes {
            for phase in node.phases.iter().filter(|phase| phase.status == TestStatus::Failed) {
                failures.push_str(&format!(
                    "\n### {}: {}\n\n```\n{}\n```\n",
                    node.name, phase.name, phase.message
                ));
            }
            for check in node.checks.iter().filter(|check| check.status == TestStatus::Failed) {
                failures.push_str(&format!(
                    "\n### {}: {}\n\n```\n{}\n```\n",
                    node.name, check.check, check.message
                ));
            }
        }
        // What failed and belongs to no node: a server, another machine, a link.
        for phase in self.phases.iter().filter(|phase| phase.status == TestStatus::Failed) {
            let is_of_a_node = |node: &TestedNode| {
                node.phases.iter().any(|own| own.name == phase.name && own.status == TestStatus::Failed)
            };
            if !self.nodes.iter().any(is_of_a_node) {
                failures.push_str(&format!("\n### {}\n\n```\n{}\n```\n", phase.name, phase.message));
            }
        }
        if !failures.is_empty() {
            text.push_str("\n## Failures\n");
            text.push_str(&failures);
        }
    }
}

/// Returns a text as it fits into a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> TestReport {
        let phase = |name: &str, status| TestPhase {
            name: name.to_owned(),
            description: String::new(),
            status,
            message: "a | b\nc".to_owned(),
            duration: 1.25,
        };
        TestReport {
            scenario: "manifest-test-lab".to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            run: None,
            mode: "push".to_owned(),
            success: false,
            started_at: Timestamp::parse("2026-11-15T06:55:12.345678Z").unwrap(),
            finished_at: Timestamp::parse("2026-11-15T06:55:14Z").unwrap(),
            duration: 1.7,
            phases: vec![phase("create", TestStatus::Passed), phase("verify", TestStatus::Failed)],
            nodes: vec![TestedNode {
                name: NodeName::parse("edge").unwrap(),
                phases: vec![phase("verify", TestStatus::Failed)],
                checks: vec![Check::new("hostname", true, "edge"), Check::new("users", false, "no ops")],
            }],
        }
    }

    #[test]
    fn files_are_named_by_time_manifest_and_end() {
        assert_eq!(report().file_stem(1), "20261115-065512.manifest.lab.failed");
        assert_eq!(report().file_stem(2), "20261115-065512-2.manifest.lab.failed");
    }

    #[test]
    fn people_read_phases_nodes_and_failures() {
        assert_eq!(
            report().to_markdown(),
            "# Test of manifest lab\n\n- Host: local\n- Status: failed\n- Date: 2026-11-15T06:55:12.345678Z\n\
             - Duration: 1.7 s\n\n## Phases\n\n| phase | status | duration | message |\n|---|---|---|---|\n\
             | create | passed | 1.2 s | a \\| b c |\n| verify | failed | 1.2 s | a \\| b c |\n\n\
             ## Nodes\n\n| node | create | verify | destroy | checks |\n|---|---|---|---|---|\n\
             | edge | - | failed | - | 1 of 2 passed |\n\n## Failures\n\n### edge: verify\n\n```\na | b\nc\n```\n\n\
             ### edge: users\n\n```\nno ops\n```\n"
        );
    }

    /// Section 13: failures in full, also where they are of no node: a server that did not start, another machine.
    #[test]
    fn a_failure_of_no_node_is_told_too() {
        let report = TestReport { nodes: Vec::new(), ..report() };
        let text = report.to_markdown();
        assert!(text.ends_with("\n## Failures\n\n### verify\n\n```\na | b\nc\n```\n"), "{text}");
    }
}
