//! Jobs of nodes that ask another server than that of this level: the stead where they are made is asked about them.
//!
//! The same question may come twice, after a connection that was cut before the answer came: a new job has a key, which
//! its server keeps, so that there is one.

use std::collections::BTreeSet;
use std::time::Duration;

use stead_model::node::{AnswerPart, JobAnswer, JobAsked, JobWish, NodesState};
use stead_model::plan::Digest;
use stead_model::site::manifest::{Delegation, Mode};
use stead_model::{ErrorClass, NodeName, SiteKey};
use stead_runner::operation::OpError;
use tokio::time::timeout;

use super::NodesSurroundings;
use super::line::Line;
use super::reach::Said;
use crate::errand::COMMAND;

/// How long who makes nodes may take to be reached, and then to answer besides what it is asked to wait.
const REACHED: Duration = Duration::from_secs(20);
const ANSWERED: Duration = Duration::from_secs(60);
/// How often a question is asked whose answer did not come.
const TRIES: usize = 3;
/// The most bytes of an answer that come at once: a job keeps no more than a MiB of what it writes.
const PART_BYTES: usize = 768 << 10;
/// The longest answer: two streams of a job in JSON, whatever their bytes, or a list.
const LONGEST_ANSWER: u64 = 256 << 20;

/// Returns a new key, by which the server of a level below knows a job that is asked for again.
pub fn new_job_key() -> String {
    let mut bytes = [0; 16];
    // Without random bytes the time still tells keys apart that one person makes.
    getrandom::fill(&mut bytes).ok();
    let run = stead_runner::clock::new_run_id(stead_runner::clock::now());
    format!("{run}-{:032x}", u128::from_be_bytes(bytes))
}

/// Returns the part of an answer from byte `from` on, as it is written for who asked.
pub fn answer_part(answer: &JobAnswer, from: u64) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    let mut begin = usize::try_from(from).unwrap_or(usize::MAX).min(text.len());
    while !text.is_char_boundary(begin) {
        begin -= 1;
    }
    let mut end = begin.saturating_add(PART_BYTES).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = AnswerPart { total: text.len() as u64, digest: Digest::of(text.as_bytes()).to_string() };
    format!("{}\n{}", serde_json::to_string(&head).unwrap_or_default(), &text[begin..end])
}

/// Who is asked.
enum Whom {
    Node(NodeName),
    Host(String),
}

/// A way to who is asked, and the line to it while that holds.
struct Way<'n> {
    nodes: &'n NodesSurroundings,
    whom: Whom,
    line: Option<Line>,
}

impl NodesSurroundings {
    /// Returns the way to the server that a node asks: the nodes it is in, outermost first, and before them the host if
    /// that is another machine. Empty: the server of this level. None: nothing is remembered of the node.
    pub fn server_path(&self, name: &NodeName) -> Option<Vec<SiteKey>> {
        self.parts.memory.look(|state| self.path_in(state, name))
    }

    /// Returns the ways to all servers that nodes with an agent ask.
    pub fn server_paths(&self) -> BTreeSet<Vec<SiteKey>> {
        self.parts.memory.look(|state| {
            let fetching = state.nodes.iter().filter(|(_, entry)| entry.fetches());
            fetching.filter_map(|(name, _)| self.path_in(state, name)).collect()
        })
    }

    fn path_in(&self, state: &NodesState, name: &NodeName) -> Option<Vec<SiteKey>> {
        let root = state.root_of(name)?;
        let parent = |name: &NodeName| state.nodes.get(name).and_then(|entry| entry.parent.clone());
        let above = std::iter::successors(parent(name), parent).map(|name| name.to_string());
        let on = Some(self.made_on(state.nodes.get(root)?));
        let on = on.filter(|host| self.parts.elsewhere.contains_key(*host)).map(str::to_owned);
        let mut path: Vec<SiteKey> =
            above.chain(on).map(|step| SiteKey::parse(&step).ok()).collect::<Option<_>>()?;
        path.reverse();
        Some(path)
    }

    /// Returns how a node gets its work, if it is remembered: as its agent was told.
    pub fn run_mode(&self, name: &NodeName) -> Option<Mode> {
        let entry = self.entry(name)?;
        Some(entry.told.map_or(entry.mode, |told| told.mode))
    }

    /// Whether hosting nodes are told what to do by their agents alone.
    pub fn tells_by_job(&self) -> bool {
        self.parts.manifest.settings.delegation == Delegation::Job
    }

    /// Whether the first step of a way is one that this level can go: a node of it, or another machine that it uses.
    pub fn knows_step(&self, step: &SiteKey) -> bool {
        self.whom(step).is_some()
    }

    fn whom(&self, step: &SiteKey) -> Option<Whom> {
        let node = NodeName::parse(step.as_str()).ok();
        let is_own = |name: &NodeName| {
            let own = self.entry(name).filter(|entry| entry.parent.is_none());
            own.is_some_and(|entry| !self.parts.elsewhere.contains_key(self.made_on(&entry)))
        };
        let host = || {
            let host = self.parts.elsewhere.get_key_value(step.as_str());
            host.map(|(name, _)| Whom::Host(name.clone()))
        };
        node.filter(is_own).map(Whom::Node).or_else(host)
    }

    fn way_for<'n>(&'n self, asked: &JobAsked) -> Result<(Way<'n>, Vec<u8>), OpError> {
        let unknown = || OpError::invalid("nobody is named who could be asked");
        let (first, rest) = asked.path.split_first().ok_or_else(unknown)?;
        let whom = self.whom(first);
        let whom = whom.ok_or_else(|| OpError::invalid(format!("no nodes in `{first}` are known")))?;
        let below = JobAsked { path: rest.to_vec(), ..asked.clone() };
        let input = serde_json::to_vec(&below).map_err(|error| OpError::invalid(error.to_string()))?;
        Ok((Way { nodes: self, whom, line: None }, input))
    }

    /// Asks along the path, and returns the whole answer.
    pub async fn ask_jobs(&self, asked: &JobAsked) -> Result<JobAnswer, OpError> {
        let (mut way, input) = self.way_for(asked)?;
        'again: for _ in 0..TRIES {
            let (mut text, mut known): (Vec<u8>, Option<AnswerPart>) = (Vec::new(), None);
            loop {
                let (head, part) = way.part(asked, &input, text.len() as u64).await?;
                if known.as_ref().is_some_and(|known| *known != head) {
                    // A list that has changed between two parts.
                    continue 'again;
                }
                text.extend(part);
                if text.len() as u64 >= head.total {
                    let bad = |_| OpError::operation(format!("{way} answered with something else"));
                    return serde_json::from_slice(&text).map_err(bad);
                }
                known = Some(head);
            }
        }
        Err(OpError::operation(format!("what {way} answers changes all the time")))
    }

    /// Asks along the path for the part of the answer from byte `from` on, and returns it as it comes: for a level above.
    pub async fn ask_job_part(&self, asked: &JobAsked, from: u64) -> Result<String, OpError> {
        let (mut way, input) = self.way_for(asked)?;
        let (head, part) = way.part(asked, &input, from).await?;
        let head = serde_json::to_string(&head).unwrap_or_default();
        Ok(format!("{head}\n{}", String::from_utf8_lossy(&part)))
    }
}

impl std::fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.whom {
            Whom::Node(name) => name.fmt(f),
            Whom::Host(name) => f.write_str(name),
        }
    }
}

impl Way<'_> {
    async fn open(&self, by_job: bool) -> Result<Line, OpError> {
        let nodes = self.nodes;
        let opening = async {
            match &self.whom {
                Whom::Node(name) if by_job => {
                    nodes.job_line(nodes.running_server().await?, name, REACHED).await
                }
                Whom::Node(name) => nodes.connect(name).await.map(Line::Ssh),
                Whom::Host(name) => nodes.line_to(&nodes.host_deputy(name)?).await,
            }
        };
        // Somewhat more than who waits by itself, which says better why.
        let late = |_| OpError::new(ErrorClass::Unreachable, format!("{self} was not reached within 20s"));
        timeout(REACHED + Duration::from_secs(1), opening).await.map_err(late)?
    }

    /// Asks for a part of an answer, again if it was asked and did not answer.
    async fn part(
        &mut self,
        asked: &JobAsked,
        input: &[u8],
        from: u64,
    ) -> Result<(AnswerPart, Vec<u8>), OpError> {
        let (wait, may_repeat) = match &asked.wish {
            JobWish::Show { wait, .. } => (*wait, true),
            JobWish::Submit(request) => (0, request.key.is_some()),
            // Asked a second time it means more: an agent that is not there is given up.
            JobWish::Cancel(_) => (0, false),
            JobWish::List => (0, true),
        };
        let patience = ANSWERED + Duration::from_secs(wait);
        let mut tries = if may_repeat { TRIES } else { 1 };
        loop {
            let line = match self.line.take() {
                Some(line) => line,
                None => self.open(asked.by_job).await?,
            };
            tries -= 1;
            let late =
                |_| Err(OpError::new(ErrorClass::Unreachable, format!("{self} did not answer in time")));
            match timeout(patience, self.once(&line, input, from)).await.unwrap_or_else(late) {
                Ok(part) => {
                    self.line = Some(line);
                    return Ok(part);
                }
                Err(error) if error.class == ErrorClass::Unreachable && tries > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn once(&self, line: &Line, input: &[u8], from: u64) -> Result<(AnswerPart, Vec<u8>), OpError> {
        let parts = &self.nodes.parts;
        let (site, manifest) = (parts.site.settings.value.name.as_str(), parts.name.as_str());
        let (host, from) = (self.to_string(), from.to_string());
        let place = ["--of-site", site, "--manifest", manifest, "--host", &host, "--from", &from];
        let argv: Vec<&str> = [COMMAND, "job"].into_iter().chain(place).collect();
        let node = match &self.whom {
            Whom::Node(name) => Some(name),
            Whom::Host(_) => None,
        };
        let said = self.nodes.ask(line, node, &argv, input.to_vec()).await?;
        split(&said).ok_or_else(|| {
            // One that was killed may have done what it was asked to; one that ends by itself says what is wrong.
            let was_killed = said.code.is_none_or(|code| !(0..128).contains(&code));
            let class = if was_killed { ErrorClass::Unreachable } else { ErrorClass::Operation };
            OpError::new(class, format!("{self} did not answer: {}", said.complaint()))
        })
    }
}

/// Returns the head of a part of an answer, and the part.
fn split(said: &Said) -> Option<(AnswerPart, Vec<u8>)> {
    let end = said.stdout.iter().position(|byte| *byte == b'\n')?;
    let (head, part) = said.stdout.split_at(end);
    let head: AnswerPart = serde_json::from_slice(head).ok()?;
    let part = part.get(1..)?;
    // Less than nothing never becomes the whole.
    let is_good = head.total <= LONGEST_ANSWER && (head.total == 0 || !part.is_empty());
    is_good.then(|| (head, part.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::node::JobRefusal;

    /// A long answer comes in parts, whatever characters it is made of, and is the same again.
    #[test]
    fn an_answer_comes_in_parts() {
        let refused = |message: String| {
            let code = "E200".to_owned();
            JobAnswer::Refused(JobRefusal { exit_code: stead_model::ExitCode::Usage, code, message })
        };
        for message in [String::new(), "ü\n\"\u{1f980}".repeat(300_000), "x".repeat(PART_BYTES)] {
            let answer = refused(message);
            let (mut text, mut parts) = (Vec::new(), 0);
            loop {
                let said =
                    Said { stdout: answer_part(&answer, text.len() as u64).into_bytes(), ..Said::default() };
                let (head, part) = split(&said).unwrap();
                assert!(part.len() <= PART_BYTES);
                text.extend(part);
                parts += 1;
                if text.len() as u64 >= head.total {
                    break;
                }
            }
            assert_eq!(parts, text.len().div_ceil(PART_BYTES), "{}", text.len());
            assert_eq!(serde_json::from_slice::<JobAnswer>(&text).unwrap(), answer);
        }
    }

    #[test]
    fn keys_are_never_the_same() {
        let keys: BTreeSet<String> = (0..100).map(|_| new_job_key()).collect();
        assert_eq!(keys.len(), 100);
        assert!(
            keys.iter().all(|key| key.len() <= 128 && key.bytes().all(|b| b.is_ascii_graphic())),
            "{keys:?}"
        );
    }
}
