//! Reading secrets when a run starts: from the environment or from files, never from the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stead_model::plan::{Plan, SecretRef};
use stead_model::transport::SecretSource;
use stead_model::{Diagnostic, Diagnostics, diagnostic::Place};

use crate::redact::{Redactor, Secret};

/// Secrets shorter than this cannot be told from ordinary text when masking.
const SHORTEST: usize = 4;

/// The secrets of a run.
pub(crate) struct Secrets {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) redactor: Redactor,
    /// Environment variables that commands do not inherit.
    pub(crate) hidden_env: Vec<String>,
}

/// Reads every secret of a plan, or says what is wrong with all of them. Passwords of hosts are masked too.
pub(crate) fn read(
    plan: &Plan,
    environment: &BTreeMap<String, String>,
    base_dir: &Path,
    passwords: BTreeSet<String>,
) -> Result<Secrets, Diagnostics> {
    let mut problems = Diagnostics::default();
    let mut values = BTreeMap::new();
    let mut hidden_env = Vec::new();
    for (name, from) in &plan.secrets {
        let problem = |code, message: String, help: String| {
            Diagnostic::error(code, Place::Named(format!("secret `{name}`")), message).help(help)
        };
        let value = match from {
            SecretRef::Env(variable) => {
                hidden_env.push(variable.clone());
                environment.get(variable).cloned().ok_or_else(|| {
                    let message =
                        format!("the environment variable `{variable}` of secret `{name}` is not set");
                    problem("plan/missing-var", message, format!("set {variable} and start again"))
                })
            }
            SecretRef::File(path) => {
                let path = base_dir.join(path);
                read_file(&path).map_err(|error| {
                    let message = format!("cannot read secret `{name}` from {}: {error}", path.display());
                    problem("plan/missing-var", message, "make the file readable for this account".to_owned())
                })
            }
        };
        match value {
            Ok(value) if value.len() < SHORTEST => problems.push(problem(
                "plan/short-secret",
                format!("secret `{name}` is shorter than {SHORTEST} bytes and could not be masked in output"),
                "use a longer secret".to_owned(),
            )),
            Ok(value) => {
                values.insert(name.clone(), value);
            }
            Err(diagnostic) => problems.push(diagnostic),
        }
    }
    if problems.has_errors() {
        return Err(problems);
    }
    let passwords = passwords.iter().filter(|password| password.len() >= SHORTEST);
    let secrets: Vec<Secret> =
        values.values().chain(passwords).map(|value| Secret::new(value.as_bytes())).collect();
    let redactor = Redactor::new(&secrets).map_err(|error| {
        Diagnostics(vec![Diagnostic::error(
            "plan/bad-value",
            Place::Named("secrets".to_owned()),
            error.to_string(),
        )])
    })?;
    Ok(Secrets { values, redactor, hidden_env })
}

/// Returns the secret that `source` names, or what is wrong with it.
pub(crate) fn read_source(
    source: &SecretSource,
    environment: &BTreeMap<String, String>,
    base_dir: &Path,
) -> Result<String, String> {
    match source {
        SecretSource::Literal(value) => Ok(value.clone()),
        SecretSource::Env(name) => environment
            .get(name)
            .cloned()
            .ok_or_else(|| format!("the environment variable `{name}` is not set")),
        SecretSource::File(path) => {
            let home = environment.get("HOME").map(Path::new);
            let place = match (path.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => home.join(below),
                (Some(_) | None, _) => base_dir.join(path),
            };
            read_file(&place).map_err(|error| format!("cannot read {}: {error}", place.display()))
        }
    }
}

/// Reads a secret's file: text of at most 1 MiB, its final newline cut.
fn read_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    const LONGEST: u64 = 1024 * 1024;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "longer than 1 MiB"));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}
