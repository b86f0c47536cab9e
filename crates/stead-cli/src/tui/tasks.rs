//! The tasks of a run as a tree: hosts below tasks, and what runs below did.

use super::filter::Filter;
use super::scroll::Scroll;
use super::watched::{HostRow, Phase, Watched};

/// The list of a run's tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    at: usize,
    /// What narrows it.
    pub(crate) filter: Filter,
    /// Which part of what is told of the row at the cursor is on the screen.
    pub(crate) scroll: Scroll,
}

/// A row of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Branch<'a> {
    /// A task or phase.
    Task(&'a Phase),
    /// A task on one of its hosts.
    Host(&'a Phase, &'a HostRow),
    /// What a run below did, for a task.
    Below(&'a Phase),
    /// The same, on one of its hosts.
    BelowHost(&'a Phase, &'a HostRow),
}

impl<'a> Branch<'a> {
    /// Returns how deep it stands.
    pub(crate) fn depth(self) -> usize {
        match self {
            Self::Task(_) => 0,
            Self::Host(..) | Self::Below(_) => 1,
            Self::BelowHost(..) => 2,
        }
    }

    /// Returns what it is called.
    pub(crate) fn name(self) -> &'a str {
        match self {
            Self::Task(phase) | Self::Below(phase) => &phase.name,
            Self::Host(_, host) | Self::BelowHost(_, host) => &host.name,
        }
    }

    /// Returns the word for how it stands.
    pub(crate) fn word(self, has_phases: bool) -> &'static str {
        match self {
            Self::Task(phase) => phase.word(has_phases),
            Self::Below(phase) => phase.word(false),
            Self::Host(_, host) | Self::BelowHost(_, host) => host.word(),
        }
    }

    /// Returns why it stands so.
    pub(crate) fn note(self) -> Option<&'a str> {
        match self {
            Self::Task(phase) | Self::Below(phase) => phase.note.as_deref(),
            Self::Host(_, host) | Self::BelowHost(_, host) => host.note.as_deref(),
        }
    }

    /// Returns the place of what it wrote in the run's list of roles.
    pub(crate) fn output(self, run: &Watched) -> Option<usize> {
        match self {
            Self::Task(phase) => run.output_of(&phase.name, None),
            Self::Host(phase, host) => run.output_of(&phase.name, Some(&host.name)),
            // What a run below wrote is in the record of that run.
            Self::Below(_) | Self::BelowHost(..) => None,
        }
    }
}

impl Tasks {
    /// Returns the rows that fit the filter: a task stays when something below it fits.
    pub(crate) fn branches<'a>(&self, run: &'a Watched) -> Vec<Branch<'a>> {
        let words = self.filter.words();
        let mut shown = Vec::new();
        for phase in &run.phases {
            let fits = |branch: Branch<'_>| {
                words.fit([
                    phase.name.as_str(),
                    branch.name(),
                    branch.word(run.has_phases()),
                    branch.note().unwrap_or_default(),
                ])
            };
            let below: Vec<Branch<'_>> = below(phase).into_iter().filter(|branch| fits(*branch)).collect();
            if !below.is_empty() || fits(Branch::Task(phase)) {
                shown.push(Branch::Task(phase));
                shown.extend(below);
            }
        }
        shown
    }

    /// Returns which of `rows` is at the cursor.
    pub(crate) fn at(&self, rows: usize) -> usize {
        self.at.min(rows.saturating_sub(1))
    }

    /// Moves the cursor to a row.
    pub(crate) fn go(&mut self, at: usize) {
        self.at = at;
        self.scroll = Scroll::default();
    }
}

/// Returns the rows below a task. A task on this machine alone has none for it.
fn below(phase: &Phase) -> Vec<Branch<'_>> {
    let mut rows = Vec::new();
    if is_worth_telling(&phase.hosts) {
        rows.extend(phase.hosts.iter().map(|host| Branch::Host(phase, host)));
    }
    for inner in &phase.below {
        rows.push(Branch::Below(inner));
        if is_worth_telling(&inner.hosts) {
            rows.extend(inner.hosts.iter().map(|host| Branch::BelowHost(inner, host)));
        }
    }
    rows
}

fn is_worth_telling(hosts: &[HostRow]) -> bool {
    match hosts {
        [] => false,
        [only] => only.name != "local",
        _ => true,
    }
}
