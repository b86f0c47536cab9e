//! What a request asks for: its path and query, read once, into names that are valid or refused.

use hyper::{Method, Uri};
use stead_model::node::wire::{LONGEST_WAIT_SECONDS, WireCode, WireError};
use stead_model::plan::Digest;
use stead_model::{MessageId, NodeName, RunId, SiteKey};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Whether the server answers.
    Health,
    /// The names of all specs.
    Specs,
    /// What a node becomes.
    Spec(NodeName),
    /// A file of a clone; one whose name is not even a path has none.
    Repo { name: String, path: Vec<String> },
    /// A program or image by hash.
    Artifact(Digest),
    /// What an agent is to do.
    Next { node: NodeName, after: Option<u64>, wait: u64 },
    /// What a node reports; the query may name the job it is about.
    Reports { node: NodeName, job: Option<MessageId> },
    /// A new token for a node.
    Token(NodeName),
    /// Nodes by name, after one of them.
    Nodes { after: Option<NodeName> },
    /// One node.
    Node { node: NodeName, after: u64, wait: Option<u64> },
    /// A signal for a node.
    Signals(NodeName),
    /// Jobs after one of them, or a new one.
    Jobs { after: Option<MessageId> },
    /// One job; who waits wants it when it has ended or has written more than `after` bytes.
    Job { id: MessageId, after: u64, wait: u64 },
    /// What a job of a node reads.
    JobInput { node: NodeName, id: MessageId },
    /// All runs of submitted plans, or a new one.
    Plans,
    /// One of them.
    PlanRun(RunId),
    /// What happens in it.
    PlanEvents { run: RunId, after: u64, wait: u64 },
    /// A hook that fires a trigger.
    Hook(String),
    /// The page for people.
    Page,
    /// What the page asks for.
    Shown(stead_web::Asked),
    /// All manifests.
    Manifests,
    /// One manifest.
    Manifest(SiteKey),
    /// The server itself.
    Server,
    /// Reading everything again.
    Reload,
    /// Reading the keys again.
    Keys,
    /// Read everything again for a run: what was spoilt of others stays as it was.
    Usable,
}

impl Route {
    /// Returns the methods that it takes.
    pub(crate) const fn methods(&self) -> &'static [Method] {
        match self {
            Self::Health
            | Self::Specs
            | Self::Spec(_)
            | Self::Repo { .. }
            | Self::Artifact(_)
            | Self::Nodes { .. }
            | Self::Node { .. }
            | Self::PlanEvents { .. }
            | Self::Page
            | Self::Manifests
            | Self::Manifest(_)
            | Self::Server => &[Method::GET, Method::HEAD],
            // Asking without reading the answer would lose a signal.
            Self::Next { .. } | Self::JobInput { .. } | Self::Shown(_) => &[Method::GET],
            Self::Reports { .. }
            | Self::Token(_)
            | Self::Signals(_)
            | Self::Hook(_)
            | Self::Reload
            | Self::Keys
            | Self::Usable => &[Method::POST],
            Self::Jobs { .. } | Self::Plans => &[Method::GET, Method::HEAD, Method::POST],
            Self::Job { .. } | Self::PlanRun(_) => &[Method::GET, Method::HEAD, Method::DELETE],
        }
    }

    /// Returns what it is called in logs.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Specs => "specs",
            Self::Spec(_) => "spec",
            Self::Repo { .. } => "repo",
            Self::Artifact(_) => "artifact",
            Self::Next { .. } => "next",
            Self::Reports { .. } => "report",
            Self::Token(_) => "token",
            Self::Nodes { .. } => "nodes",
            Self::Node { .. } => "node",
            Self::Signals(_) => "signal",
            Self::Jobs { .. } => "jobs",
            Self::Job { .. } => "job",
            Self::JobInput { .. } => "job input",
            Self::Plans => "plans",
            Self::PlanRun(_) => "plan",
            Self::PlanEvents { .. } => "plan events",
            Self::Hook(_) => "hook",
            Self::Page => "page",
            Self::Shown(_) => "page data",
            Self::Manifests => "manifests",
            Self::Manifest(_) => "manifest",
            Self::Server => "server",
            Self::Reload => "reload",
            Self::Keys => "keys",
            Self::Usable => "usable",
        }
    }

    /// Returns what `uri` asks for.
    pub(crate) fn parse(uri: &Uri) -> Result<Self, WireError> {
        if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
            return bad("this server is no proxy: ask for a path");
        }
        let raw = uri.path().trim_start_matches('/');
        if !uri.path().starts_with("//")
            && let Some((name, path)) = repo(raw)
        {
            return Ok(Self::Repo { name, path });
        }
        if let Some(path) = raw.strip_prefix("ui/data/") {
            let asked = stead_web::Asked::parse(path, uri.query());
            return asked.map(Self::Shown).ok_or_else(|| bad_path("what the page asks for"));
        }
        let segments = segments(uri.path()).ok_or_else(|| bad_path("the path"))?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let mut query = Query::parse(uri.query().unwrap_or_default())?;
        let route = match segments.as_slice() {
            ["health"] => Self::Health,
            ["specs"] => Self::Specs,
            ["spec"] => return Err(WireError::new(WireCode::E101, "whose spec? ask for /spec/NODE")),
            ["spec", node] => Self::Spec(name(node)?),
            ["v1", "artifacts", "sha256", hex] => {
                Self::Artifact(Digest::parse(hex).ok_or_else(|| bad_path("the hash"))?)
            }
            ["v1", "nodes"] => Self::Nodes { after: query.node("after")? },
            ["v1", "nodes", node] => Self::Node {
                node: name(node)?,
                after: query.number("after", u64::MAX)?.unwrap_or(0),
                wait: query.number("wait", LONGEST_WAIT_SECONDS)?,
            },
            ["v1", "nodes", node, "next"] => Self::Next {
                node: name(node)?,
                after: query.place("after")?,
                wait: query.number("wait", LONGEST_WAIT_SECONDS)?.unwrap_or(0),
            },
            ["v1", "nodes", node, "reports"] => {
                Self::Reports { node: name(node)?, job: query.message("job")? }
            }
            ["v1", "nodes", node, "token"] => Self::Token(name(node)?),
            ["v1", "nodes", node, "signals"] => Self::Signals(name(node)?),
            ["v1", "jobs"] => Self::Jobs { after: query.message("after")? },
            ["v1", "nodes", node, "jobs", id, "input"] => {
                Self::JobInput { node: name(node)?, id: message(id)? }
            }
            ["v1", "jobs", id] => Self::Job {
                id: message(id)?,
                after: query.number("after", u64::MAX)?.unwrap_or(0),
                wait: query.number("wait", LONGEST_WAIT_SECONDS)?.unwrap_or(0),
            },
            ["v1", "plans"] => Self::Plans,
            ["v1", "plans", id] => Self::PlanRun(run(id)?),
            ["v1", "plans", id, "events"] => Self::PlanEvents {
                run: run(id)?,
                after: query.number("after", u64::MAX)?.unwrap_or(0),
                wait: query.number("wait", LONGEST_WAIT_SECONDS)?.unwrap_or(0),
            },
            ["v1", "hooks", path @ ..] if !path.is_empty() => Self::Hook(format!("/{}", path.join("/"))),
            ["ui"] => Self::Page,
            ["v1", "manifests"] => Self::Manifests,
            ["v1", "manifests", key] => {
                Self::Manifest(SiteKey::parse(key).map_err(|_| bad_path("the manifest's name"))?)
            }
            ["v1", "server"] => Self::Server,
            ["v1", "server", "reload"] => Self::Reload,
            ["v1", "server", "keys"] => Self::Keys,
            ["v1", "server", "usable"] => Self::Usable,
            _ => return bad("there is no such endpoint"),
        };
        query.end()?;
        Ok(route)
    }
}

fn bad<T>(why: &str) -> Result<T, WireError> {
    Err(WireError::new(WireCode::E100, why))
}

fn bad_path(what: &str) -> WireError {
    WireError::new(WireCode::E100, format!("{what} is not as it should be"))
}

fn name(text: &str) -> Result<NodeName, WireError> {
    NodeName::parse(text).map_err(|_| bad_path("the node's name"))
}

fn run(text: &str) -> Result<RunId, WireError> {
    RunId::parse(text).map_err(|_| bad_path("the run's id"))
}

fn message(text: &str) -> Result<MessageId, WireError> {
    MessageId::parse(text).map_err(|_| bad_path("the job's id"))
}

/// Returns the repository that a path is of, and the path in it.
fn repo(raw: &str) -> Option<(String, Vec<String>)> {
    let (first, rest) = raw.split_once('/').unwrap_or((raw, ""));
    let name = first.strip_suffix(".git")?;
    Some((name.to_owned(), segments(&format!("/{rest}")).unwrap_or_default()))
}

/// Returns the parts of a path, each decoded once; nothing if one could be taken for something else.
fn segments(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    path.split('/')
        .map(|raw| {
            let part = decode(raw)?;
            let is_plain =
                !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\\', '\0']);
            is_plain.then_some(part)
        })
        .collect()
}

/// Returns `text` with `%XX` decoded, if that gives text.
fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// What is behind the `?`: each name once, and none that is not asked for.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Result<Self, WireError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(key), Some(value)) = (decode(key), decode(value)) else {
                return bad("the query is not as it should be");
            };
            if pairs.iter().any(|(known, _)| *known == key) {
                return bad("the query says something twice");
            }
            pairs.push((key, value));
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn number(&mut self, key: &str, most: u64) -> Result<Option<u64>, WireError> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if is_number && number <= most => Ok(Some(number)),
            Ok(_) | Err(_) => bad(&format!("`{key}` is a number from 0 to {most}")),
        }
    }

    fn message(&mut self, key: &str) -> Result<Option<MessageId>, WireError> {
        let id = self.take(key).map(|text| MessageId::parse(&text)).transpose();
        id.map_err(|_| bad_path(&format!("`{key}`")))
    }

    fn node(&mut self, key: &str) -> Result<Option<NodeName>, WireError> {
        self.take(key).map(|text| name(&text)).transpose()
    }

    /// Returns the place of a message; 0 is before all of them.
    fn place(&mut self, key: &str) -> Result<Option<u64>, WireError> {
        let Some(text) = self.take(key) else { return Ok(None) };
        if text == "0" {
            return Ok(Some(0));
        }
        let id = MessageId::parse(&text).map_err(|_| bad_path(&format!("`{key}`")))?;
        Ok(Some(id.sequence()))
    }

    fn end(self) -> Result<(), WireError> {
        match self.0.first() {
            None => Ok(()),
            Some(_) => bad("the query says something that is not known here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use stead_web::Asked;

    use super::*;

    fn code(target: &str) -> WireCode {
        Route::parse(&target.parse().unwrap()).unwrap_err().code
    }

    #[test]
    fn paths_are_split_then_decoded_once() {
        let edge = NodeName::parse("edge").unwrap();
        for path in ["/spec/edge", "/spec/edge/", "/spec/%65dge", "/%73pec/edge"] {
            assert_eq!(Route::parse(&path.parse().unwrap()).unwrap(), Route::Spec(edge.clone()), "{path}");
        }
        for path in [
            "/",
            "/nope",
            "/spec//edge",
            "//spec/edge",
            "/spec/%2565dge",
            "/spec/..",
            "/spec/%2e%2e",
            "/spec/a%2fb",
            "/spec/a%00",
            "/spec/%zz",
            "/spec/%e",
            "/spec/Edge",
            "/spec/edge/x",
            "/spec/%ff",
            "/spec/a%5cb",
            "/../etc/passwd",
            "/v1/artifacts/sha256/..",
            "/v1/artifacts/md5/x",
            "/v1/jobs/x",
            "/ui/x",
            "/ui/data/x",
            "/ui/data/runs/..",
            "/v1/plans/..",
            "/v1/plans/a%2fb",
            "/v1/plans/x/events?wait=99",
            "/v1/hooks",
            "/v1/manifests/..",
            "/spec/edge?x=1",
        ] {
            assert_eq!(code(path), WireCode::E100, "{path}");
        }
        assert_eq!(code("/spec"), WireCode::E101);
        assert_eq!(code("/spec/"), WireCode::E101);
        assert_eq!(code("https://other/spec/edge"), WireCode::E100);
    }

    #[test]
    fn queries_are_numbers_within_bounds() {
        let next = |query: &str| Route::parse(&format!("/v1/nodes/edge/next{query}").parse().unwrap());
        assert!(matches!(next("?wait=55&after=s3"), Ok(Route::Next { wait: 55, after: Some(3), .. })));
        assert!(matches!(next("?after=0"), Ok(Route::Next { after: Some(0), .. })));
        assert!(matches!(next(""), Ok(Route::Next { wait: 0, after: None, .. })));
        for query in [
            "?wait=56",
            "?wait=-1",
            "?wait=",
            "?wait=+1",
            "?wait=1&wait=2",
            "?after=3",
            "?x",
            "?wait=99999999999999999999",
        ] {
            assert_eq!(next(query).unwrap_err().code, WireCode::E100, "{query}");
        }
    }

    #[test]
    fn repositories_have_paths_of_their_own() {
        let parsed = |target: &str| Route::parse(&target.parse().unwrap()).unwrap();
        let repo = |name: &str, path: &[&str]| Route::Repo {
            name: name.to_owned(),
            path: path.iter().map(|&part| part.to_owned()).collect(),
        };
        assert_eq!(parsed("/kit.git/info/refs?service=git-upload-pack"), repo("kit", &["info", "refs"]));
        assert_eq!(parsed("/kit.git/%2e%2e/x"), repo("kit", &[]));
        assert_eq!(parsed("/kit.git/a%2fb"), repo("kit", &[]));
        assert_eq!(parsed("/kit.git"), repo("kit", &[]));
    }

    /// Returns every name that a route has, which files and records are called by.
    fn names(route: &Route) -> Vec<String> {
        match route {
            Route::Spec(node) | Route::Token(node) | Route::Signals(node) => vec![node.to_string()],
            Route::Next { node, .. } | Route::Node { node, .. } => vec![node.to_string()],
            Route::Reports { node, job } => {
                [node.to_string()].into_iter().chain(job.as_ref().map(ToString::to_string)).collect()
            }
            Route::JobInput { node, id } => vec![node.to_string(), id.to_string()],
            Route::Nodes { after } => after.iter().map(ToString::to_string).collect(),
            Route::Jobs { after } => after.iter().map(ToString::to_string).collect(),
            Route::Job { id, .. } => vec![id.to_string()],
            Route::PlanRun(run) | Route::PlanEvents { run, .. } => vec![run.to_string()],
            Route::Artifact(digest) => vec![digest.to_string()],
            Route::Manifest(key) => vec![key.to_string()],
            // A name that no repository has is not found; what is below it are plain parts.
            Route::Repo { path, .. } => path.clone(),
            Route::Hook(path) => path.split('/').skip(1).map(str::to_owned).collect(),
            Route::Shown(asked) => match asked {
                Asked::Run(run) | Asked::Events { run, .. } | Asked::Log { run, .. } | Asked::Verify(run) => {
                    vec![run.clone()]
                }
                Asked::Diff { from, to } => vec![from.clone(), to.clone()],
                Asked::About | Asked::Runs | Asked::Nodes | Asked::Jobs | Asked::Fleet => Vec::new(),
            },
            Route::Health
            | Route::Specs
            | Route::Plans
            | Route::Page
            | Route::Manifests
            | Route::Server
            | Route::Reload
            | Route::Keys
            | Route::Usable => Vec::new(),
        }
    }

    /// A part of a path: a name that is known, one that could be one, or something that wants to be another path.
    fn part() -> impl Strategy<Value = String> {
        prop_oneof![
            "(spec|specs|ui|data|runs|log|verify|v1|nodes|next|reports|token|signals|jobs|j1|input|plans|events|hooks|manifests|edge|kit\\.git)",
            "[a-z0-9._-]{0,12}",
            "(\\.|%2e|%2E|/|%2f|%5c|%00|%25|%|a|[\\x21-\\x7e]){0,6}",
        ]
    }

    proptest! {
        /// Section 16: whatever is asked for, there is an answer, and no name leads out of where it is looked for.
        #[test]
        fn any_path_is_answered(
            parts in prop::collection::vec(part(), 0..7),
            query in "(\\?(after|wait|job|x)=[0-9a-z%&=]{0,8})?",
            raw in "\\PC{0,40}",
        ) {
            for target in [format!("/{}{query}", parts.join("/")), format!("/{raw}"), raw.clone()] {
                // What is no request target does not come this far.
                let Ok(uri) = target.parse::<Uri>() else { continue };
                match Route::parse(&uri) {
                    Ok(route) => for name in names(&route) {
                        let is_plain = !name.is_empty() && name != "." && name != ".."
                            && !name.contains(['/', '\\', '\0']);
                        prop_assert!(is_plain, "{target}: {route:?}");
                    },
                    Err(error) => prop_assert!(matches!(error.code, WireCode::E100 | WireCode::E101), "{target}: {error:?}"),
                }
            }
        }
    }
}
