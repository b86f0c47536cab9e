//! What the surroundings mean: environment variables, terminals, directories.
//!
//! The only place that reads environment variables. Everything else gets a [`Settings`], so that a test
//! can make one. Nothing is created here: a state directory that does not exist is only named.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use stead_model::RunId;

use crate::args::{ColorWhen, GlobalArgs, Progress};
use crate::output::Paint;

/// The environment variables of the process, taken once.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Returns the environment of this process.
    pub fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// Returns the value of the variable called `name`, also if it is empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns the variables whose names and values are text, for a plan's `env` and `secrets`.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let text = |text: &OsString| text.to_str().map(str::to_owned);
        self.0.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
    }

    /// Returns the names of the variables whose values are not text.
    pub fn not_text(&self) -> impl Iterator<Item = &str> {
        let garbled = self.0.iter().filter(|(_, value)| value.to_str().is_none());
        garbled.filter_map(|(name, _)| name.to_str())
    }

    /// Returns all variables.
    pub fn to_os_map(&self) -> BTreeMap<OsString, OsString> {
        self.0.clone()
    }

    /// Returns the value of the variable called `name` if it is not empty, as the conventions of
    /// `NO_COLOR` and of our own variables want it.
    fn given(&self, name: &str) -> Option<&OsStr> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Which of our streams are terminals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminals {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

impl Terminals {
    /// Asks the operating system.
    pub fn of_process() -> Self {
        Self {
            stdin: std::io::stdin().is_terminal(),
            stdout: std::io::stdout().is_terminal(),
            stderr: std::io::stderr().is_terminal(),
        }
    }
}

/// Where a value came from, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Nobody said anything.
    Default,
    /// Found in the file system.
    Found,
    /// An environment variable.
    Environment,
    /// A flag.
    Flag,
}

/// Where runs and locks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    /// The directory; it may not exist yet.
    pub path: PathBuf,
    /// Who said so.
    pub layer: Layer,
}

impl StateDir {
    /// Returns the directory of the runs.
    pub fn runs(&self) -> PathBuf {
        self.path.join("runs")
    }

    /// Returns this directory as found from `start` upwards, if nobody has said where it is.
    pub fn from(&self, start: &Path) -> Self {
        match self.layer {
            Layer::Flag | Layer::Environment => self.clone(),
            Layer::Found | Layer::Default => Self::resolve(None, &Environment::default(), start),
        }
    }

    fn resolve(flag: Option<&Path>, environment: &Environment, current_dir: &Path) -> Self {
        if let Some(path) = flag {
            return Self { path: current_dir.join(path), layer: Layer::Flag };
        }
        if let Some(path) = environment.given("STEAD_DIR") {
            return Self { path: current_dir.join(path), layer: Layer::Environment };
        }
        let found = current_dir.ancestors().map(|dir| dir.join(".stead")).find(|dir| dir.is_dir());
        match found {
            Some(path) => Self { path, layer: Layer::Found },
            None => Self { path: current_dir.join(".stead"), layer: Layer::Default },
        }
    }
}

/// What a command needs to know of its surroundings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where runs and locks are kept.
    pub state_dir: StateDir,
    /// Where the process was started.
    pub current_dir: PathBuf,
    /// `$STEAD_INVENTORY`, used when no `-i` is given.
    pub inventory: Option<PathBuf>,
    /// `$STEAD_AGENTS`, used when neither `-i` nor `--agents` is given.
    pub agents: Option<PathBuf>,
    /// Where the user keeps files for Stead: `$XDG_CONFIG_HOME/stead`, else `~/.config/stead`.
    pub config_dir: Option<PathBuf>,
    /// Where the user's runs of steps lock what they act on: `$XDG_STATE_HOME/stead`, else `~/.local/state/stead`. None
    /// for who has no home.
    pub user_state_dir: Option<PathBuf>,
    /// The runs whose tasks started this process, nearest first: `$STEAD_RUN_ID`, then `$STEAD_PARENT_RUNS`.
    pub parent_runs: Vec<RunId>,
    /// Which streams are terminals.
    pub terminals: Terminals,
    /// Colours for standard output.
    pub stdout_paint: Paint,
    /// Colours for standard error.
    pub stderr_paint: Paint,
    /// Whether the terminal can move its cursor.
    pub can_move_cursor: bool,
    /// `$COLUMNS` and `$LINES`, where the terminal does not say.
    pub size_hint: (Option<u16>, Option<u16>),
    /// The command line as it was typed, for the run's record.
    pub argv: Vec<String>,
    /// For the plan's own `env` and `secrets`.
    pub environment: Environment,
}

/// More runs within runs than this are a loop; the variable must not grow without end.
const PARENT_RUNS: usize = 64;

/// Returns the runs that started this process, nearest first. Without the nearest the others mean nothing.
fn parent_runs(environment: &Environment) -> Vec<RunId> {
    let parse = |id: &str| RunId::parse(id).ok();
    let given = |name: &str| environment.given(name).and_then(OsStr::to_str);
    let Some(parent) = given("STEAD_RUN_ID").and_then(parse) else { return Vec::new() };
    let before = given("STEAD_PARENT_RUNS").unwrap_or_default().split(',').filter_map(parse);
    std::iter::once(parent).chain(before).take(PARENT_RUNS).collect()
}

impl Settings {
    /// Returns what `global` flags and surroundings mean together.
    pub fn new(
        global: &GlobalArgs,
        environment: Environment,
        terminals: Terminals,
        current_dir: PathBuf,
    ) -> Self {
        let number = |name: &str| environment.given(name)?.to_str()?.parse().ok().filter(|count| *count > 0);
        let colors = ColorRule::new(global.color, &environment);
        Self {
            state_dir: StateDir::resolve(global.state_dir.as_deref(), &environment, &current_dir),
            inventory: environment.given("STEAD_INVENTORY").map(|path| current_dir.join(path)),
            agents: environment.given("STEAD_AGENTS").map(|path| current_dir.join(path)),
            config_dir: config_dir(&environment),
            user_state_dir: user_state_dir(&environment, crate::reach::home),
            parent_runs: parent_runs(&environment),
            terminals,
            stdout_paint: colors.paint(terminals.stdout),
            stderr_paint: colors.paint(terminals.stderr),
            can_move_cursor: environment.given("TERM").is_some_and(|term| term != "dumb"),
            size_hint: (number("COLUMNS"), number("LINES")),
            argv: Vec::new(),
            current_dir,
            environment,
        }
    }

    /// Returns the site directory that the environment names, with the variable that does.
    pub fn site_variable(&self) -> Option<(String, PathBuf)> {
        let named = |name: &str| Some((name.to_owned(), PathBuf::from(self.environment.given(name)?)));
        let older = || {
            let (name, root) = named("HOMESTAK_ROOT")?;
            Some((name, root.join("config")))
        };
        ["STEAD_SITE", "HOMESTAK_SITE_CONFIG", "HOMESTAK_ETC"].into_iter().find_map(named).or_else(older)
    }

    /// Returns below what the files of the node are that this process runs on: `$STEAD_ROOT`, else `/`.
    ///
    /// A relative one is meant from here: to take it for `/` would change this machine in place of another.
    pub fn root(&self) -> PathBuf {
        let given = self.environment.given("STEAD_ROOT").map(|root| self.current_dir.join(root));
        given.unwrap_or_else(|| PathBuf::from("/"))
    }

    /// Returns the name of the node this process runs on, where its surroundings say it: `$STEAD_NODE`.
    pub fn node(&self) -> Option<String> {
        self.environment.given("STEAD_NODE")?.to_str().map(str::to_owned)
    }

    /// Returns the server that the environment names.
    pub fn server_url(&self) -> Option<String> {
        self.first_text(&["STEAD_SERVER", "HOMESTAK_SERVER", "HOMESTAK_SPEC_SERVER"])
    }

    /// Returns the token that the environment holds.
    pub fn server_token(&self) -> Option<String> {
        self.first_text(&["STEAD_TOKEN", "HOMESTAK_TOKEN"])
    }

    /// Returns the pin of the server that the environment names.
    pub fn server_pin(&self) -> Option<String> {
        self.first_text(&["STEAD_FINGERPRINT"])
    }

    fn first_text(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.environment.given(name)?.to_str().map(str::to_owned))
    }

    /// Returns how progress is shown, never [`Progress::Auto`].
    pub fn progress(&self, wanted: Progress) -> Progress {
        match wanted {
            Progress::Auto if self.terminals.stderr && self.can_move_cursor => Progress::Tty,
            Progress::Auto => Progress::Plain,
            Progress::Tty | Progress::Plain | Progress::None => wanted,
        }
    }
}

/// A relative `$XDG_CONFIG_HOME` counts as none, as the base directory specification wants it.
fn config_dir(environment: &Environment) -> Option<PathBuf> {
    let absolute = |name: &str| environment.given(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("stead"))
}

/// Without `$HOME` it is the account's home that counts: another place would be another lock.
fn user_state_dir(
    environment: &Environment,
    account_home: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let absolute = |name: &str| environment.given(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").or_else(|| account_home().filter(|home| home.is_absolute()));
    let base = absolute("XDG_STATE_HOME").or_else(|| home().map(|home| home.join(".local/state")));
    base.map(|base| base.join("stead"))
}

/// The rule for colours, usable before the arguments are known to be good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColorRule {
    when: ColorWhen,
    suppressed: bool,
}

impl ColorRule {
    pub(crate) fn new(when: ColorWhen, environment: &Environment) -> Self {
        let dumb = environment.given("TERM").is_none_or(|term| term == "dumb");
        Self { when, suppressed: dumb || environment.given("NO_COLOR").is_some() }
    }

    pub(crate) fn paint(self, is_terminal: bool) -> Paint {
        match self.when {
            ColorWhen::Always => Paint::Ansi,
            ColorWhen::Auto if is_terminal && !self.suppressed => Paint::Ansi,
            ColorWhen::Auto | ColorWhen::Never => Paint::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(color: ColorWhen, pairs: &[(&str, &str)], terminal: bool) -> Settings {
        let global = GlobalArgs { state_dir: None, color };
        let terminals = Terminals { stdin: terminal, stdout: terminal, stderr: terminal };
        Settings::new(&global, pairs.iter().copied().collect(), terminals, PathBuf::from("/nowhere/at/all"))
    }

    #[test]
    fn colour_needs_a_terminal_and_no_veto() {
        let xterm = ("TERM", "xterm");
        assert_eq!(settings(ColorWhen::Auto, &[xterm], true).stdout_paint, Paint::Ansi);
        assert_eq!(settings(ColorWhen::Auto, &[xterm], false).stdout_paint, Paint::None);
        assert_eq!(settings(ColorWhen::Auto, &[xterm, ("NO_COLOR", "1")], true).stdout_paint, Paint::None);
        assert_eq!(settings(ColorWhen::Auto, &[xterm, ("NO_COLOR", "")], true).stdout_paint, Paint::Ansi);
        assert_eq!(settings(ColorWhen::Auto, &[("TERM", "dumb")], true).stdout_paint, Paint::None);
        assert_eq!(settings(ColorWhen::Never, &[xterm], true).stdout_paint, Paint::None);
        assert_eq!(settings(ColorWhen::Always, &[("NO_COLOR", "1")], false).stdout_paint, Paint::Ansi);
    }

    #[test]
    fn progress_moves_only_where_it_can() {
        assert_eq!(
            settings(ColorWhen::Auto, &[("TERM", "xterm")], true).progress(Progress::Auto),
            Progress::Tty
        );
        assert_eq!(
            settings(ColorWhen::Auto, &[("TERM", "dumb")], true).progress(Progress::Auto),
            Progress::Plain
        );
        assert_eq!(
            settings(ColorWhen::Auto, &[("TERM", "xterm")], false).progress(Progress::Auto),
            Progress::Plain
        );
        assert_eq!(settings(ColorWhen::Auto, &[], false).progress(Progress::Tty), Progress::Tty);
    }

    #[test]
    fn the_state_directory_is_flag_then_variable_then_nearest_then_here() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let given: Environment = [("STEAD_DIR", "env")].into_iter().collect();
        let empty: Environment = [("STEAD_DIR", "")].into_iter().collect();
        let resolve =
            |flag: Option<&str>, environment| StateDir::resolve(flag.map(Path::new), environment, &deep);
        assert_eq!(resolve(Some("x"), &given), StateDir { path: deep.join("x"), layer: Layer::Flag });
        assert_eq!(resolve(None, &given), StateDir { path: deep.join("env"), layer: Layer::Environment });
        assert_eq!(resolve(None, &empty).path, deep.join(".stead"));
        std::fs::create_dir(root.path().join("a/.stead")).unwrap();
        assert_eq!(
            resolve(None, &empty),
            StateDir { path: root.path().join("a/.stead"), layer: Layer::Found }
        );
    }

    /// Section 8: a lock is the user's, also where nothing says where the user's home is.
    #[test]
    fn without_a_home_in_the_environment_the_accounts_home_counts() {
        let dir = |pairs: &[(&str, &str)], home: Option<&str>| {
            user_state_dir(&pairs.iter().copied().collect(), || home.map(PathBuf::from))
        };
        let at_home = Some(PathBuf::from("/home/ann/.local/state/stead"));
        assert_eq!(dir(&[("HOME", "/home/ann")], None), at_home);
        assert_eq!(dir(&[], Some("/home/ann")), at_home);
        assert_eq!(dir(&[("HOME", "relative")], Some("/home/ann")), at_home);
        assert_eq!(dir(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], None), Some(PathBuf::from("/s/stead")));
        assert_eq!(dir(&[], None), None);
    }

    #[test]
    fn debug_shows_no_values() {
        let environment: Environment = [("API_KEY", "hunter2")].into_iter().collect();
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
