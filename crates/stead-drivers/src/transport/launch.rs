//! How a program is started through a login shell without giving that shell a single byte of the user's.
//!
//! The login shell, whichever it is, runs a constant: a POSIX shell that reads one line of its input and evaluates it.
//! That line, ASCII only, changes the directory, sets the environment, finds the program and becomes it; the rest of
//! the input is the program's. `read` takes single bytes from what cannot be sought, so it never takes too much.
//! Neither side's process list ever shows an environment value or input.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use stead_model::argv::quote;
use stead_runner::transport::{Command, TransportError, TransportErrorKind};

/// Where programs are looked for besides `PATH`.
pub(crate) const EXTRA_PATH: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

// Without backslash, newline, `!` or inner `'`: bash, dash, zsh, fish and csh read these lines alike.
const LINE: &str = "exec /bin/sh -c 'IFS= read -r stead_line && eval \"$stead_line\"'";
const CLEAN_LINE: &str = "exec env -i /bin/sh -c 'IFS= read -r stead_line && eval \"$stead_line\"'";

/// A command as it is carried to a login shell.
pub(crate) struct Launch {
    /// What the login shell is given; a constant.
    pub(crate) line: &'static str,
    /// What the POSIX shell reads first, with its final newline.
    pub(crate) script: Vec<u8>,
}

impl Launch {
    /// Returns how `command` is started. Once it is at the program's door it prints `nonce`, its process id
    /// and `root` or `user` on stdout, and `nonce` on stderr; whatever comes before is noise of the login shell.
    ///
    /// # Errors
    /// If there is no program, a NUL anywhere, or a variable name that no shell can set.
    pub(crate) fn new(command: &Command, nonce: &str) -> Result<Self, TransportError> {
        check(command)?;
        let mut script = Script::default();
        script.cwd(command, nonce);
        script.find(command);
        script.mark(nonce);
        script.refuse(command);
        script.environment(command);
        script.become_it(command);
        let line = if command.clear_env { CLEAN_LINE } else { LINE };
        Ok(Self { line, script: script.finish() })
    }

    /// Returns how `words`, one line of a POSIX shell, are evaluated; they begin as a program does.
    pub(crate) fn of_shell(words: &str, nonce: &str) -> Self {
        let mut script = Script::default();
        script.mark(nonce);
        script.push(words);
        Self { line: LINE, script: script.finish() }
    }
}

/// Refuses what cannot be started on any transport.
pub(crate) fn check(command: &Command) -> Result<(), TransportError> {
    let invalid = |message: String| Err(TransportError::new(TransportErrorKind::Invalid, message));
    if command.argv.first().is_none_or(|program| program.is_empty()) {
        return invalid("the command names no program".to_owned());
    }
    if let Some(place) = command.argv.iter().position(|word| has_nul(word)) {
        return invalid(format!("argument {place} of the command contains a NUL byte"));
    }
    for (name, value) in &command.env {
        let bytes = name.as_bytes();
        let fits = bytes.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        if !fits {
            return invalid(format!(
                "the environment variable {name:?} cannot be set: a name has letters, digits and `_`, and no digit first"
            ));
        }
        if has_nul(value) {
            return invalid(format!("the environment variable {name:?} contains a NUL byte"));
        }
    }
    if command.cwd.as_ref().is_some_and(|path| has_nul(path.as_os_str())) {
        return invalid("the working directory contains a NUL byte".to_owned());
    }
    Ok(())
}

fn has_nul(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

/// The line being written. Words that are not printable ASCII are made by `printf` into variables first.
#[derive(Default)]
struct Script {
    words: String,
    body: String,
    made: usize,
}

impl Script {
    fn push(&mut self, text: &str) {
        self.body.push_str(text);
    }

    fn word(&mut self, bytes: &[u8]) {
        let word = self.word_of(bytes);
        self.body.push_str(&word);
    }

    /// Returns what evaluates to exactly `bytes`, as one word.
    fn word_of(&mut self, bytes: &[u8]) -> String {
        if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return String::from_utf8_lossy(&quote([bytes])).into_owned();
        }
        self.made += 1;
        let name = format!("stead_{}", self.made);
        self.words.push_str(&name);
        self.words.push_str("=$(printf '");
        for byte in bytes {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b' ' | b'/' | b'.' | b'_' | b'-' => {
                    self.words.push(char::from(*byte));
                }
                other => {
                    self.words.push('\\');
                    self.words.push_str(&format!("{other:03o}"));
                }
            }
        }
        // The dot guards a final newline, which the substitution would take away.
        self.words.push_str(".'); ");
        self.words.push_str(&name);
        self.words.push_str("=${");
        self.words.push_str(&name);
        self.words.push_str("%.}; ");
        ["\"$", &name, "\""].concat()
    }

    fn mark(&mut self, nonce: &str) {
        // A builtin tells root from others; where it does not exist, root is the safe answer.
        self.push("stead_account=root; [ ! -O / ] 2>/dev/null && stead_account=user; printf '%s %s %s\\n' ");
        self.push(nonce);
        self.push(" $$ $stead_account; echo ");
        self.push(nonce);
        self.push(" >&2; ");
    }

    fn cwd(&mut self, command: &Command, nonce: &str) {
        if let Some(cwd) = &command.cwd {
            self.push("CDPATH= cd -- ");
            self.word(cwd.as_os_str().as_bytes());
            self.push(" >/dev/null || { echo ");
            self.push(nonce);
            self.push(" cwd; exit 126; }; ");
        }
    }

    /// Sets `stead_found` to what `exec` is given, or leaves it empty.
    fn find(&mut self, command: &Command) {
        let program = program(command);
        if program.contains(&b'/') {
            let word = self.word_of(program);
            for part in ["stead_blocked=; stead_found=; if [ -f ", &word, " ]; then if [ -x ", &word] {
                self.push(part);
            }
            for part in [" ]; then stead_found=", &word, "; else stead_blocked=", &word, "; fi; fi; "] {
                self.push(part);
            }
            self.push("stead_path=$PATH; ");
            return;
        }
        self.push("stead_path=");
        match command.env.get(OsStr::new("PATH")) {
            Some(path) => self.word(path.as_bytes()),
            None => self.push("$PATH"),
        }
        self.push("; stead_blocked=; stead_found=; IFS=:; set -f; for stead_dir in $stead_path; do ");
        // In PATH the shell finds it again, and argv[0] stays as it was given.
        self.candidate(program, program.starts_with(b"-"));
        self.push("done; if [ -z \"$stead_found\" ]; then for stead_dir in ");
        self.push(&EXTRA_PATH.join(" "));
        self.push("; do ");
        self.candidate(program, true);
        self.push("done; fi; ");
    }

    fn candidate(&mut self, program: &[u8], by_path: bool) {
        let word = self.word_of(program);
        // An empty part of PATH is the working directory.
        let place = ["\"${stead_dir:-.}\"/", &word].concat();
        let found = if by_path { &place } else { &word };
        for part in ["if [ -f ", &place, " ]; then if [ -x ", &place, " ]; then stead_found=", found] {
            self.push(part);
        }
        for part in ["; break; fi; stead_blocked=${stead_blocked:-", &place, "}; fi; "] {
            self.push(part);
        }
    }

    /// Ends with 126 or 127 if nothing was found, in the words of the local search.
    fn refuse(&mut self, command: &Command) {
        let program = self.word_of(program(command));
        for part in [
            "if [ -z \"$stead_found\" ]; then if [ -n \"$stead_blocked\" ]; then ",
            "printf '`%s` is not executable\\n' \"$stead_blocked\" >&2; exit 126; fi; ",
            "printf 'program `%s` not found in PATH `%s` nor in ",
            &EXTRA_PATH.join(":"),
            "\\n' ",
            &program,
            " \"$stead_path\" >&2; exit 127; fi; ",
        ] {
            self.push(part);
        }
    }

    fn environment(&mut self, command: &Command) {
        if command.clear_env {
            self.push("unset PWD OLDPWD SHLVL; ");
        }
        for (name, value) in &command.env {
            self.push("export ");
            self.push(&name.to_string_lossy());
            self.push("=");
            self.word(value.as_bytes());
            self.push("; ");
        }
    }

    fn become_it(&mut self, command: &Command) {
        self.push("exec \"$stead_found\"");
        for word in command.argv.iter().skip(1) {
            self.push(" ");
            self.word(word.as_bytes());
        }
    }

    fn finish(self) -> Vec<u8> {
        [self.words, self.body, "\n".to_owned()].concat().into_bytes()
    }
}

fn program(command: &Command) -> &[u8] {
    command.argv.first().map_or(&[], |word| word.as_bytes())
}

#[cfg(test)]
#[path = "launch/tests.rs"]
mod tests;
