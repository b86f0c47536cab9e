//! The files to start with: what `stead init` writes for each front door. A site's are in [`crate::site::starter`], a
//! fleet's in [`crate::fleet::starter`].
//!
//! Every set works as it is written, and brings the schemas that its first lines name to editors.

use serde_json::Value;

use crate::schema::{plan_schema, run_schema, steps_schema};

/// One file to start with.
#[derive(Clone)]
pub struct StarterFile {
    /// Its path below the directory that is begun.
    pub path: String,
    /// What is in it.
    pub content: String,
    /// Who may do what with it.
    pub access: Access,
}

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody reads it.
    Open,
    /// Everybody runs it.
    Program,
    /// Only its owner reads it.
    Secret,
}

impl StarterFile {
    /// Returns a file that everybody may read.
    pub fn open(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { path: path.into(), content: content.into(), access: Access::Open }
    }

    /// Returns the schema of `word`, where the first lines of files look for it.
    pub fn schema(word: &str, schema: &Value) -> Self {
        Self::open(format!("defs/{word}.schema.json"), format!("{schema:#}\n"))
    }
}

/// Returns the files of a first plan, sorted.
pub fn plan() -> Vec<StarterFile> {
    sorted(vec![
        StarterFile::open("plan.yaml", include_str!("starter/plan/plan.yaml")),
        StarterFile::schema("plan", &plan_schema()),
        StarterFile::open(".gitignore", "/.stead/\n"),
    ])
}

/// Returns the files of a first catalogue of steps, sorted.
pub fn steps() -> Vec<StarterFile> {
    let scripts = [
        ("scripts/10_storage.sh", include_str!("starter/steps/scripts/10_storage.sh")),
        ("scripts/20_app.sh", include_str!("starter/steps/scripts/20_app.sh")),
        ("scripts/90_verify.sh", include_str!("starter/steps/scripts/90_verify.sh")),
    ];
    let scripts = scripts
        .map(|(path, content)| StarterFile { access: Access::Program, ..StarterFile::open(path, content) });
    let others = [
        StarterFile::open("steps.yaml", include_str!("starter/steps/steps.yaml")),
        StarterFile::open("config.env", include_str!("starter/steps/config.env")),
        StarterFile::open("profiles/big.env", include_str!("starter/steps/profiles/big.env")),
        StarterFile::schema("steps", &steps_schema()),
        StarterFile::open(".gitignore", "/.stead/\n"),
    ];
    sorted(scripts.into_iter().chain(others).collect())
}

/// Returns the files of a first run of roles, sorted.
pub fn run() -> Vec<StarterFile> {
    sorted(vec![
        StarterFile::open("run.yaml", include_str!("starter/run/run.yaml")),
        StarterFile::open("store.sh", include_str!("starter/run/store.sh")),
        StarterFile::open("load.sh", include_str!("starter/run/load.sh")),
        StarterFile::schema("run", &run_schema()),
        StarterFile::open(".gitignore", "/.stead/\n/runs/\n"),
    ])
}

fn sorted(mut files: Vec<StarterFile>) -> Vec<StarterFile> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::starter::Persona;
    use crate::yaml::{self, Codes};
    use crate::{Diagnostics, diagnostic::Source, fleet, site};

    /// What an editor says of every file: nothing, by the schema that its first line names, which is one of the files.
    #[test]
    fn every_file_that_names_a_schema_fits_it() {
        let homelab = site::starter::starter(Persona::Homelab, None);
        let sets = [
            (plan(), 1),
            (steps(), 1),
            (run(), 1),
            // All but .gitignore and the schemas themselves.
            (homelab, 13),
            (fleet::starter::starter(), 7),
        ];
        for (files, expected) in sets {
            let mut checked = 0;
            for file in files.iter().filter(|file| file.path.ends_with(".yaml")) {
                let first = file.content.lines().next().unwrap();
                let named = first.strip_prefix("# yaml-language-server: $schema=");
                let named = named.unwrap_or_else(|| panic!("{} begins with `{first}`", file.path));
                let depth = file.path.matches('/').count();
                let schema = named.strip_prefix(&"../".repeat(depth)).unwrap();
                let schema = files.iter().find(|other| other.path == schema).unwrap();
                let schema: Value = serde_json::from_str(&schema.content).unwrap();
                let source = Source { name: "x".into(), text: file.content.as_str().into() };
                let tree = yaml::read(&source, Codes::PLAN, &mut Diagnostics::default()).unwrap();
                let validator = jsonschema::validator_for(&schema).unwrap();
                assert!(validator.is_valid(&tree.root().to_json()), "{}", file.path);
                checked += 1;
            }
            assert_eq!(checked, expected);
        }
    }

    #[test]
    fn only_scripts_that_are_named_by_themselves_can_be_run() {
        let programs = |files: Vec<StarterFile>| {
            files.into_iter().filter(|file| file.access == Access::Program).map(|file| file.path).collect()
        };
        let steps: Vec<String> = programs(steps());
        assert_eq!(steps, ["scripts/10_storage.sh", "scripts/20_app.sh", "scripts/90_verify.sh"]);
        assert_eq!(programs(run()), Vec::<String>::new(), "the manifest says `sh`");
    }
}
