//! Reading secrets when a run starts: from the environment or from files, never from the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stead_model::base64;
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
    let (values, problems) = readable_secrets(&plan.secrets, environment, base_dir);
    if problems.has_errors() {
        return Err(problems);
    }
    let variables = plan.secrets.values().filter_map(|from| match from {
        SecretRef::Env(variable) => Some(variable.clone()),
        SecretRef::File(_) => None,
    });
    let hidden_env = variables.collect();
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

/// Returns the values of those secrets that can be read, by name, and what is wrong with the others.
pub fn readable_secrets(
    secrets: &BTreeMap<String, SecretRef>,
    environment: &BTreeMap<String, String>,
    base_dir: &Path,
) -> (BTreeMap<String, String>, Diagnostics) {
    let mut problems = Diagnostics::default();
    let mut values = BTreeMap::new();
    for (name, from) in secrets {
        let problem = |code, message: String, help: String| {
            Diagnostic::error(code, Place::Named(format!("secret `{name}`")), message).help(help)
        };
        let value = match from {
            SecretRef::Env(variable) => environment.get(variable).cloned().ok_or_else(|| {
                let message = format!("the environment variable `{variable}` of secret `{name}` is not set");
                problem("plan/missing-var", message, format!("set {variable} and start again"))
            }),
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
    (values, problems)
}

/// Returns the values of a plan's secrets by name, or says what is wrong with all of them.
pub fn read_secrets(
    plan: &Plan,
    environment: &BTreeMap<String, String>,
    base_dir: &Path,
) -> Result<BTreeMap<String, String>, Diagnostics> {
    read(plan, environment, base_dir, BTreeSet::new()).map(|secrets| secrets.values)
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

/// Returns the forms in which a secret is masked: as it is, and as programs print it in base64.
pub(crate) fn forms_of(secret: &str) -> Vec<Secret> {
    const COLUMNS: usize = 76;
    let mut forms = vec![Secret::new(secret)];
    for text in [secret.to_owned(), format!("{secret}\n")] {
        let encoded = base64::encode(text.as_bytes());
        forms.push(Secret::new(encoded.trim_end_matches('=')));
        // Each line of a form is masked by itself.
        let lines: Vec<&[u8]> = encoded.as_bytes().chunks(COLUMNS).collect();
        forms.push(Secret::new(lines.join(&b'\n')));
        forms.push(Secret::new(encoded));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_in_the_forms_in_which_programs_print_them() {
        let secret =
            "a secret that is long enough for more than one line of base64 as the usual program prints it";
        let redactor = Redactor::new(forms_of(secret)).unwrap();
        let encoded = base64::encode(secret.as_bytes());
        let echoed = base64::encode(format!("{secret}\n").as_bytes());
        let wrapped = format!("{}\n{}", &echoed[..76], &echoed[76..]);
        for text in [secret, &encoded, encoded.trim_end_matches('='), &echoed] {
            assert_eq!(redactor.redact_text(&format!("<{text}>")), "<***>", "{text}");
        }
        assert_eq!(redactor.redact_text(&wrapped), "***");
    }
}
