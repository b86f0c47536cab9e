//! What the page asks for.

/// A question of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What there is to see here.
    About,
    /// All runs.
    Runs,
    /// One run.
    Run(String),
    /// Its events, behind the one with this number.
    Events {
        /// Which run.
        run: String,
        /// The number.
        after: u64,
    },
    /// A part of a log.
    Log {
        /// Which run.
        run: String,
        /// The file, relative to the record.
        file: String,
        /// From which byte on; none: its end.
        from: Option<u64>,
    },
    /// Whether a run's record is as it was sealed.
    Verify(String),
    /// What differs between two runs.
    Diff {
        /// The older one.
        from: String,
        /// The newer one.
        to: String,
    },
    /// The nodes of a site.
    Nodes,
    /// The jobs of a server.
    Jobs,
    /// The state of a fleet.
    Fleet,
}

/// The longest question.
const LONGEST: usize = 4096;

impl Asked {
    /// Returns what `path`, without the place where questions begin, and `query` ask for.
    pub fn parse(path: &str, query: Option<&str>) -> Option<Self> {
        let query = query.unwrap_or_default();
        if path.len() + query.len() > LONGEST {
            return None;
        }
        let parts: Vec<String> = path.split('/').map(decoded).collect::<Option<_>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let mut query = Query::parse(query)?;
        let asked = match *parts.as_slice() {
            ["about"] => Self::About,
            ["runs"] => Self::Runs,
            ["runs", run] => Self::Run(name(run)?),
            ["runs", run, "events"] => {
                Self::Events { run: name(run)?, after: query.number("after")?.unwrap_or(0) }
            }
            ["runs", run, "log"] => {
                Self::Log { run: name(run)?, file: query.take("file")?, from: query.number("from")? }
            }
            ["runs", run, "verify"] => Self::Verify(name(run)?),
            ["diff"] => Self::Diff { from: name(&query.take("from")?)?, to: name(&query.take("to")?)? },
            ["nodes"] => Self::Nodes,
            ["jobs"] => Self::Jobs,
            ["fleet"] => Self::Fleet,
            _ => return None,
        };
        query.0.is_empty().then_some(asked)
    }

    /// Returns the same question for events behind the one that the browser saw last.
    #[must_use]
    pub fn behind(self, last: Option<&str>) -> Self {
        match (self, last.and_then(|last| last.parse().ok())) {
            (Self::Events { run, .. }, Some(after)) => Self::Events { run, after },
            (asked, _) => asked,
        }
    }
}

/// Returns what a run is called, if that is the name of one file.
fn name(text: &str) -> Option<String> {
    let is_one = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\\', '\0']);
    is_one.then(|| text.to_owned())
}

/// What is behind the `?`: each name once.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Option<Self> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            if pairs.iter().any(|(known, _)| known == name) {
                return None;
            }
            pairs.push((name.to_owned(), decoded(value)?));
        }
        Some(Self(pairs))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Returns a number, if there is one; none at all if it is not one.
    fn number(&mut self, name: &str) -> Option<Option<u64>> {
        match self.take(name) {
            None => Some(None),
            Some(text) => text.parse().ok().map(Some),
        }
    }
}

/// Returns `text` with `%XX` decoded, if that gives text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_whole_or_not_at_all() {
        let run = || "a b".to_owned();
        let log = |from| Some(Asked::Log { run: run(), file: "logs/x.log".to_owned(), from });
        for (path, query, asked) in [
            ("about", None, Some(Asked::About)),
            ("runs", Some(""), Some(Asked::Runs)),
            ("runs/a%20b", None, Some(Asked::Run(run()))),
            ("runs/a%20b/events", None, Some(Asked::Events { run: run(), after: 0 })),
            ("runs/a%20b/events", Some("after=7"), Some(Asked::Events { run: run(), after: 7 })),
            ("runs/a%20b/events", Some("after=x"), None),
            ("runs/a%20b/log", Some("file=logs%2Fx.log"), log(None)),
            ("runs/a%20b/log", Some("file=logs/x.log&from=9"), log(Some(9))),
            ("runs/a%20b/log", None, None),
            ("runs/a%20b/verify", None, Some(Asked::Verify(run()))),
            ("diff", Some("from=a&to=b"), Some(Asked::Diff { from: "a".to_owned(), to: "b".to_owned() })),
            ("diff", Some("from=a&to=../b"), None),
            ("diff", Some("from=a&from=b&to=c"), None),
            ("runs", Some("x=1"), None),
            ("runs/..", None, None),
            ("runs/%2e%2e", None, None),
            ("runs/.hidden", None, None),
            ("runs/a%2fb", None, None),
            ("runs/a%00", None, None),
            ("runs/%ff", None, None),
            ("runs/%4", None, None),
            ("runs/", None, None),
            ("", None, None),
            ("nodes/", None, None),
        ] {
            assert_eq!(Asked::parse(path, query), asked, "{path} {query:?}");
        }
        assert_eq!(Asked::parse(&format!("runs/{}", "a".repeat(LONGEST)), None), None);
    }

    #[test]
    fn a_browser_that_comes_back_goes_on_where_it_was() {
        let events = |after| Asked::Events { run: "r".to_owned(), after };
        assert_eq!(events(0).behind(Some("12")), events(12));
        assert_eq!(events(3).behind(Some("x")), events(3));
        assert_eq!(events(3).behind(None), events(3));
        assert_eq!(Asked::Runs.behind(Some("12")), Asked::Runs);
    }
}
