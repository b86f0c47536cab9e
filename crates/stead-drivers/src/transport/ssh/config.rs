//! ssh_config as OpenSSH reads it: which values hold for a host.
//!
//! Pure: texts in, values out. Files are read and `Match exec` is run by what the caller hands in. The values are the
//! words as written, by keyword; `settings` gives them meaning. A keyword that has no effect here is remembered by name.

mod line;

use std::collections::{BTreeMap, BTreeSet};

use super::pattern;
use line::{Line, words};

/// How deep files may include each other, as in OpenSSH.
const DEEPEST: usize = 16;

/// How the values of a keyword are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    /// The first line that has it.
    First,
    /// The first line that has it, all its words.
    List,
    /// Every line that has it.
    Each,
    /// The first line that has it, with blanks and all.
    Raw,
}

/// The keywords that have an effect.
const KEYWORDS: &[(&str, Taking)] = &[
    ("addressfamily", Taking::First),
    ("bindaddress", Taking::First),
    ("certificatefile", Taking::Each),
    ("ciphers", Taking::First),
    ("connecttimeout", Taking::First),
    ("globalknownhostsfile", Taking::List),
    ("hashknownhosts", Taking::First),
    ("hostkeyalgorithms", Taking::First),
    ("hostkeyalias", Taking::First),
    ("hostname", Taking::First),
    ("identitiesonly", Taking::First),
    ("identityagent", Taking::First),
    ("identityfile", Taking::Each),
    ("kexalgorithms", Taking::First),
    ("macs", Taking::First),
    ("port", Taking::First),
    ("proxycommand", Taking::Raw),
    ("proxyjump", Taking::Raw),
    ("pubkeyacceptedalgorithms", Taking::First),
    ("serveralivecountmax", Taking::First),
    ("serveraliveinterval", Taking::First),
    ("stricthostkeychecking", Taking::First),
    ("user", Taking::First),
    ("userknownhostsfile", Taking::List),
];

/// Other names of keywords.
const ALIASES: &[(&str, &str)] = &[
    ("globalknownhostsfile2", ""),
    ("identityfile2", "identityfile"),
    ("pubkeyacceptedkeytypes", "pubkeyacceptedalgorithms"),
    ("userknownhostsfile2", ""),
];

/// The values that hold for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshConfig {
    values: BTreeMap<String, Vec<String>>,
    ignored: BTreeSet<String>,
}

/// Which host, seen by whom.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The host as the user names it.
    pub host: &'a str,
    /// Who logs in, if that was said outside the files.
    pub user: Option<&'a str>,
    /// The port, likewise.
    pub port: Option<u16>,
    /// The account that asks.
    pub local_user: &'a str,
    /// Its home directory.
    pub home: &'a str,
}

/// A file of configuration.
#[derive(Clone, Debug)]
pub struct ConfigText {
    /// Its name, for messages.
    pub path: String,
    /// Where relative includes start.
    pub base: String,
    /// What is in it.
    pub text: String,
}

/// What reading needs from outside.
pub struct Outside<'a> {
    /// Returns the files a pattern of `Include` names, in order; none is fine.
    pub include: &'a mut dyn FnMut(&str) -> Vec<ConfigText>,
    /// Runs a command of `Match exec` and returns whether it succeeded.
    pub exec: &'a mut dyn FnMut(&str) -> bool,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// Counted from one.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl SshConfig {
    /// Returns the values that `files`, in order, give the host of `query`.
    ///
    /// # Errors
    /// If a line cannot be read, or includes go too deep.
    pub fn resolve(
        files: &[ConfigText],
        query: &Query<'_>,
        outside: &mut Outside<'_>,
    ) -> Result<Self, ConfigError> {
        let mut reading = Reading {
            query,
            host: query.host.to_owned(),
            outside,
            config: Self::default(),
            last_pass: false,
            wants_last: false,
        };
        reading.preset();
        for file in files {
            reading.file(file, true, 0)?;
        }
        if reading.wants_last {
            // `Match final`: everything again, on top of what holds already, and under the name found so far.
            reading.last_pass = true;
            reading.host = reading.host_name().to_lowercase();
            // OpenSSH fixes the name here: what the second time says of it comes too late.
            let name = vec![reading.host.replace('%', "%%")];
            reading.config.values.insert("hostname".to_owned(), name);
            for file in files {
                reading.file(file, true, 0)?;
            }
        }
        Ok(reading.config)
    }

    /// Returns the values of a keyword, named in lower case.
    pub fn all(&self, keyword: &str) -> &[String] {
        self.values.get(keyword).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a keyword.
    pub fn get(&self, keyword: &str) -> Option<&str> {
        self.all(keyword).first().map(String::as_str)
    }

    /// The keywords that were there for this host and have no effect.
    pub fn ignored(&self) -> impl Iterator<Item = &str> {
        self.ignored.iter().map(String::as_str)
    }
}

struct Reading<'a, 'b> {
    query: &'a Query<'a>,
    /// What `Host` is compared with.
    host: String,
    outside: &'a mut Outside<'b>,
    config: SshConfig,
    last_pass: bool,
    wants_last: bool,
}

impl Reading<'_, '_> {
    fn preset(&mut self) {
        if let Some(user) = self.query.user {
            self.config.values.insert("user".to_owned(), vec![user.to_owned()]);
        }
        if let Some(port) = self.query.port {
            self.config.values.insert("port".to_owned(), vec![port.to_string()]);
        }
    }

    fn file(&mut self, file: &ConfigText, active: bool, depth: usize) -> Result<(), ConfigError> {
        let within = active;
        let mut active = active;
        for (index, text) in file.text.lines().enumerate() {
            let fail = |message: String| ConfigError { file: file.path.clone(), line: index + 1, message };
            let Some(line) = Line::parse(text).map_err(fail)? else { continue };
            match line.keyword.as_str() {
                "host" => {
                    let patterns = line.words().map_err(fail)?;
                    if patterns.is_empty() {
                        return Err(fail("`Host` without a pattern".to_owned()));
                    }
                    active = within && self.host_matches(&patterns);
                }
                "match" => active = self.match_line(&line, within).map_err(fail)? && within,
                "include" => {
                    if depth >= DEEPEST {
                        return Err(fail(format!("includes go deeper than {DEEPEST}")));
                    }
                    for pattern in line.words().map_err(fail)? {
                        let pattern = self.include_path(&pattern, &file.base);
                        for mut included in (self.outside.include)(&pattern) {
                            included.base.clone_from(&file.base);
                            self.file(&included, active, depth + 1)?;
                        }
                    }
                }
                _ => self.value(&line, active).map_err(fail)?,
            }
        }
        Ok(())
    }

    fn include_path(&self, pattern: &str, base: &str) -> String {
        match pattern.strip_prefix("~/") {
            Some(rest) => format!("{}/{rest}", self.query.home),
            None if pattern.starts_with('/') => pattern.to_owned(),
            None => format!("{base}/{pattern}"),
        }
    }

    fn value(&mut self, line: &Line, active: bool) -> Result<(), String> {
        let keyword = match ALIASES.iter().find(|(alias, _)| *alias == line.keyword) {
            Some((_, name)) => *name,
            None => line.keyword.as_str(),
        };
        let Some((keyword, taking)) = KEYWORDS.iter().find(|(name, _)| *name == keyword) else {
            if active {
                self.config.ignored.insert(line.keyword.clone());
            }
            return Ok(());
        };
        let words = if *taking == Taking::Raw { vec![line.rest.clone()] } else { line.words()? };
        let Some(first) = words.first().filter(|word| !word.is_empty()) else {
            return Err(format!("`{}` without a value", line.keyword));
        };
        if *taking != Taking::List && words.len() > 1 {
            return Err(format!("`{}` takes one value; quote it if it has blanks", line.keyword));
        }
        if !active {
            return Ok(());
        }
        // Whichever of the two comes first holds; but `ProxyJump none` leaves room for a command.
        let other = match *keyword {
            "proxyjump" => self.config.get("proxycommand"),
            "proxycommand" => self.config.get("proxyjump").filter(|hops| !hops.eq_ignore_ascii_case("none")),
            _ => None,
        };
        if other.is_some() {
            return Ok(());
        }
        let values = self.config.values.entry((*keyword).to_owned()).or_default();
        match taking {
            Taking::Each if !values.contains(first) => values.push(first.clone()),
            Taking::First | Taking::List | Taking::Raw if values.is_empty() => *values = words,
            Taking::Each | Taking::First | Taking::List | Taking::Raw => {}
        }
        Ok(())
    }

    fn host_matches(&self, patterns: &[String]) -> bool {
        let mut found = false;
        for word in patterns {
            match word.strip_prefix('!') {
                Some(word) if pattern::matches(word, &self.host) => return false,
                Some(_) => {}
                None => found |= pattern::matches(word, &self.host),
            }
        }
        found
    }

    /// The name the host is known by so far.
    fn host_name(&self) -> String {
        self.config.get("hostname").map_or_else(
            || self.query.host.to_owned(),
            |name| name.replace("%%", "\0").replace("%h", self.query.host).replace('\0', "%"),
        )
    }

    fn match_line(&mut self, line: &Line, within: bool) -> Result<bool, String> {
        let mut parts = words(&line.rest)?.into_iter().peekable();
        let mut result = within;
        let mut count = 0;
        while let Some(part) = parts.next() {
            count += 1;
            let (negated, name) = match part.strip_prefix('!') {
                Some(name) => (true, name),
                None => (false, part.as_str()),
            };
            let name = name.to_lowercase();
            let (name, inline) = match name.split_once('=') {
                Some((name, _)) => (name.to_owned(), part.split_once('=').map(|(_, value)| value.to_owned())),
                None => (name, None),
            };
            if name == "all" {
                if parts.peek().is_some() || (count > 1 && !self.after_pass_word(line)) {
                    return Err("`Match all` cannot be combined with other conditions".to_owned());
                }
                return Ok(result && !negated);
            }
            if name == "final" || name == "canonical" {
                self.wants_last |= name == "final";
                result &= self.last_pass != negated;
                continue;
            }
            let argument = match inline {
                Some(value) => value,
                None => parts.next().ok_or_else(|| format!("`Match {name}` without a value"))?,
            };
            let holds = match name.as_str() {
                "host" => pattern::list_matches(&argument.to_lowercase(), &self.host_name().to_lowercase()),
                "originalhost" => {
                    pattern::list_matches(&argument.to_lowercase(), &self.query.host.to_lowercase())
                }
                "user" => {
                    pattern::list_matches(&argument, self.config.get("user").unwrap_or(self.query.local_user))
                }
                "localuser" => pattern::list_matches(&argument, self.query.local_user),
                // Nothing is run for a block that does not hold anyway.
                "exec" if !result => false,
                "exec" => {
                    let command = self.expand(&argument)?;
                    (self.outside.exec)(&command)
                }
                other => {
                    return Err(format!(
                        "`Match {other}` is not supported: all, host, originalhost, user, localuser and exec are"
                    ));
                }
            };
            result &= holds != negated;
        }
        if count == 0 {
            return Err("`Match` without a condition".to_owned());
        }
        Ok(result)
    }

    /// Whether all words before `all` choose the pass.
    fn after_pass_word(&self, line: &Line) -> bool {
        line.rest.split_whitespace().all(|word| {
            matches!(word.trim_start_matches('!').to_lowercase().as_str(), "final" | "canonical" | "all")
        })
    }

    fn expand(&self, text: &str) -> Result<String, String> {
        let user = self.config.get("user").unwrap_or(self.query.local_user).to_owned();
        Tokens {
            host: &self.host_name(),
            original: self.query.host,
            port: self.config.get("port").unwrap_or("22"),
            user: &user,
            local_user: self.query.local_user,
            home: self.query.home,
            alias: self.config.get("hostkeyalias"),
        }
        .expand(text)
    }
}

/// What `%` and a letter stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    pub(super) host: &'a str,
    pub(super) original: &'a str,
    pub(super) port: &'a str,
    pub(super) user: &'a str,
    pub(super) local_user: &'a str,
    pub(super) home: &'a str,
    pub(super) alias: Option<&'a str>,
}

impl Tokens<'_> {
    /// Returns `text` with every token replaced.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            out.push_str(match characters.next() {
                Some('%') => "%",
                Some('h') => self.host,
                Some('n') => self.original,
                Some('p') => self.port,
                Some('r') => self.user,
                Some('u') => self.local_user,
                Some('d') => self.home,
                Some('k') => self.alias.unwrap_or(self.original),
                Some(other) => {
                    return Err(format!("`%{other}` is not supported: %h %n %p %r %u %d %k %% are"));
                }
                None => return Err("a `%` at the end stands for nothing; write `%%`".to_owned()),
            });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
