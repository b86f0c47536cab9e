//! Asks a person before a task with `confirm` runs.
//!
//! Whether anybody can be asked is decided before anything starts ([`decide`]); the question itself goes
//! to the controlling terminal, so that it works with both standard streams redirected.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{QueueSelector, tcflush};
use stead_model::TaskName;

use crate::render::terminal::Pauser;

/// How long to wait for a key before looking whether the run was cancelled.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// More than anybody types; the rest of a longer line is another answer.
const LONGEST_ANSWER: usize = 256;

/// What is asked before a task runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which task.
    pub task: TaskName,
    /// The plan's text.
    pub text: String,
}

/// Whether somebody is there to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Person {
    /// A terminal can be asked.
    AtTerminal,
    /// Nobody.
    Absent,
    /// `--yes` answered already.
    SaidYes,
}

/// How questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// All with yes, or there are none.
    AllYes,
    /// Each on the terminal.
    Asked,
    /// Not at all: nobody is there. The runner refuses such a plan before anything starts, exit code 6.
    Missing,
}

/// Decides how the questions of a plan are answered, before anything starts.
pub fn decide(questions: &[Question], person: Person) -> Answers {
    match person {
        Person::SaidYes => Answers::AllYes,
        Person::AtTerminal | Person::Absent if questions.is_empty() => Answers::AllYes,
        Person::AtTerminal => Answers::Asked,
        Person::Absent => Answers::Missing,
    }
}

fn shown(text: &str) -> String {
    crate::render::one_line(text)
}

/// Asks on the controlling terminal.
pub struct Asker {
    terminal: File,
    pauser: Option<Pauser>,
}

impl Asker {
    /// Opens the controlling terminal. `pauser` stops the moving display while a question stands.
    pub fn open(pauser: Option<Pauser>) -> io::Result<Self> {
        Ok(Self::on(File::options().read(true).write(true).open("/dev/tty")?, pauser))
    }

    /// Asks on `terminal`.
    pub fn on(terminal: File, pauser: Option<Pauser>) -> Self {
        Self { terminal, pauser }
    }

    /// Returns the answer, or nothing if `cancelled` became true first. Blocks; no answer, an empty one
    /// and the end of input are no.
    pub fn ask(&mut self, question: &Question, cancelled: &dyn Fn() -> bool) -> io::Result<Option<bool>> {
        match self.pauser.clone() {
            Some(pauser) => pauser.during(|| self.converse(question, cancelled)),
            None => self.converse(question, cancelled),
        }
    }

    fn converse(&mut self, question: &Question, cancelled: &dyn Fn() -> bool) -> io::Result<Option<bool>> {
        // Keys hit before the question was seen are no answer to it.
        tcflush(&self.terminal, QueueSelector::IFlush)?;
        loop {
            // One write: progress lines may come between two.
            let text = format!("{}: {} [y/N] ", question.task, shown(&question.text));
            self.terminal.write_all(text.as_bytes())?;
            let Some(line) = self.read_line(cancelled)? else {
                writeln!(self.terminal)?;
                return Ok(None);
            };
            match line.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(Some(true)),
                "" | "n" | "no" => return Ok(Some(false)),
                _ => writeln!(self.terminal, "please answer y or n")?,
            }
        }
    }

    fn read_line(&mut self, cancelled: &dyn Fn() -> bool) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < LONGEST_ANSWER {
            if cancelled() {
                return Ok(None);
            }
            let mut polled = [PollFd::new(&self.terminal, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&BETWEEN_LOOKS)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if self.terminal.read(&mut byte)? == 0 || byte[0] == b'\n' {
                break;
            }
            line.push(byte[0]);
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question { task: TaskName::parse("drop-db").unwrap(), text: "Really\n\x1b[2Jdrop it?".to_owned() }
    }

    /// Case 30: `confirm` without terminal is answered by nobody; `--yes` answers all.
    #[test]
    fn only_a_person_or_yes_answers_questions() {
        assert_eq!(decide(&[question()], Person::Absent), Answers::Missing);
        assert_eq!(decide(&[question()], Person::SaidYes), Answers::AllYes);
        assert_eq!(decide(&[question()], Person::AtTerminal), Answers::Asked);
        assert_eq!(decide(&[], Person::Absent), Answers::AllYes);
    }
}
