//! What a commit holds, read from the clone: nothing is checked out, so no link or path of it leads anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::diagnostic::Place;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::services::publisher::Evaluator;
use stead_model::fleet::{CommitId, FleetFile};
use stead_model::site::FileKind;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics, diagnostic};

use super::failure::{Failure, Stage};
use super::git::{Git, TreeFile};

/// The name of the file that is the group `fleet`.
pub(super) const FLEET_FILE: &str = "fleet.yaml";

/// What turns a commit into VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// Nix.
    Nix,
    /// Manifests of a site.
    Site,
}

/// What a commit holds.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The commit.
    pub(super) commit: CommitId,
    /// Where in it.
    pub(super) subdir: String,
    /// Its files there.
    pub(super) files: BTreeMap<String, TreeFile>,
    /// What turns it into VMs.
    pub(super) evaluator: Chosen,
    /// What `fleet.yaml` says; the defaults without one.
    pub(super) fleet: Arc<FleetFile>,
    /// Its text, if there is one.
    pub(super) fleet_text: Option<diagnostic::Source>,
}

impl Source {
    /// Reads a commit.
    pub(super) async fn read(git: &Git, commit: &CommitId, file: &PublisherFile) -> Result<Self, Failure> {
        let failed = |error| Failure::git(Stage::Evaluated, &error);
        let files = git.tree(commit, &file.subdir).await.map_err(failed)?;
        let evaluator = choose(&files, file.evaluator)?;
        let mut source = Self {
            commit: commit.clone(),
            subdir: file.subdir.clone(),
            files,
            evaluator,
            fleet: Arc::default(),
            fleet_text: None,
        };
        if let Some(found) = source.files.get(FLEET_FILE) {
            let content = source.content(git, &[(FLEET_FILE.to_owned(), found.clone())]).await?;
            let bytes = content.into_iter().next().unwrap_or_else(|| Ok(Vec::new()));
            let mut problems = Diagnostics::default();
            let about = |failure| Failure { is_of_fleet_file: true, ..failure };
            let bytes = bytes.map_err(|why| about(Failure::permanent(Stage::Evaluated, why)))?;
            match yaml::source(&source.shown(FLEET_FILE), bytes, Codes::FLEET) {
                Ok(text) => {
                    source.fleet = Arc::new(FleetFile::read(&text, &mut problems));
                    source.fleet_text = Some(text);
                }
                Err(found) => problems = found,
            }
            if source.evaluator == Chosen::Nix {
                source.refuse_site_keys(&mut problems);
            }
            if problems.has_errors() {
                return Err(about(Failure::invalid(Stage::Evaluated, &problems.sorted())));
            }
        }
        Ok(source)
    }

    /// Reports the keys of `fleet.yaml` that say something of manifests, of which Nix knows nothing.
    fn refuse_site_keys(&self, problems: &mut Diagnostics) {
        let Some(text) = &self.fleet_text else { return };
        let fleet = &self.fleet;
        let keys = [
            ("manifests", fleet.manifests.iter().map(|glob| glob.span).next()),
            ("vms", fleet.vms.values().map(|entry| entry.span).next()),
            ("images", fleet.images.values().map(|entry| entry.span).next()),
        ];
        for (key, span) in keys.into_iter().filter_map(|(key, span)| Some((key, span?))) {
            let place = Place::Text { source: text.clone(), span };
            let message = format!("`{key}` is for sites, and this commit is evaluated by Nix");
            problems.push(Diagnostic::error("fleet/unsupported-field", place, message).path(key).help(
                "say it in the flake, in `orchestrator.vms`; or set `evaluator: site` in publisher.yaml",
            ));
        }
    }

    /// Returns what to call a file in messages.
    pub(super) fn shown(&self, path: &str) -> String {
        if self.subdir.is_empty() { path.to_owned() } else { format!("{}/{path}", self.subdir) }
    }

    /// Returns the contents of small files, or why one cannot be read.
    pub(super) async fn content(
        &self,
        git: &Git,
        files: &[(String, TreeFile)],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Failure> {
        let readable = |file: &TreeFile| {
            if !file.is_file {
                return Err("it is not a file".to_owned());
            }
            let most = Codes::FLEET.max_bytes as u64;
            if file.size > most { Err(format!("it is larger than {most} bytes")) } else { Ok(()) }
        };
        let objects: Vec<&str> = files
            .iter()
            .filter(|(_, file)| readable(file).is_ok())
            .map(|(_, file)| file.object.as_str())
            .collect();
        let contents = git.read(&objects).await.map_err(|error| Failure::git(Stage::Evaluated, &error))?;
        let mut contents = contents.into_iter();
        let found = files.iter().map(|(path, file)| {
            readable(file)
                .map(|()| contents.next().unwrap_or_default())
                .map_err(|why| format!("{}: {why}", self.shown(path)))
        });
        Ok(found.collect())
    }
}

/// Returns what turns these files into VMs.
fn choose(files: &BTreeMap<String, TreeFile>, wanted: Evaluator) -> Result<Chosen, Failure> {
    let folder = format!("{}/", FileKind::Manifest.place());
    let is_flake = files.contains_key("flake.nix");
    let is_site =
        files.contains_key(FileKind::Site.place()) || files.keys().any(|path| path.starts_with(&folder));
    let refuse = |why: &str| {
        let error = format!("{why}; set `evaluator` of publisher.yaml to `nix` or `site`");
        Err(Failure::permanent(Stage::Evaluated, error))
    };
    match (wanted, is_flake, is_site) {
        (Evaluator::Nix, ..) | (Evaluator::Auto, true, false) => Ok(Chosen::Nix),
        (Evaluator::Site, ..) | (Evaluator::Auto, false, true) => Ok(Chosen::Site),
        (Evaluator::Auto, true, true) => refuse("the commit has a flake.nix and a site"),
        (Evaluator::Auto, false, false) => {
            refuse("the commit has no flake.nix, and neither site.yaml nor manifests/")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 2: what only a site has is told where the evaluator is Nix, once for each key, with its place.
    #[test]
    fn keys_of_sites_are_refused_with_nix() {
        let of = |text: &str| {
            let mut problems = Diagnostics::default();
            let text = diagnostic::Source { name: FLEET_FILE.into(), text: text.into() };
            let fleet = Arc::new(FleetFile::read(&text, &mut problems));
            assert!(!problems.has_errors(), "{problems}");
            let source = Source {
                commit: CommitId::parse(&"a".repeat(40)).unwrap(),
                subdir: String::new(),
                files: BTreeMap::new(),
                evaluator: Chosen::Nix,
                fleet,
                fleet_text: Some(text),
            };
            source.refuse_site_keys(&mut problems);
            problems.iter().map(|problem| format!("{} {}", problem.place, problem.path)).collect::<Vec<_>>()
        };
        assert_eq!(of("api_version: v1\ndefaults: {stopSeconds: 5}\n"), Vec::<String>::new());
        let hash = "ab".repeat(32);
        let all = format!(
            "api_version: v1\nmanifests: [a/*.yaml, b/*.yaml]\nvms: {{web: {{priority: 1}}}}\nimages: {{disk: {{path: d.raw, sha256: {hash}}}}}\n"
        );
        assert_eq!(of(&all), ["fleet.yaml:2:13 manifests", "fleet.yaml:3:12 vms", "fleet.yaml:4:16 images"]);
    }

    #[test]
    fn files_choose_the_evaluator() {
        let with = |names: &[&str]| -> BTreeMap<String, TreeFile> {
            let file = TreeFile { object: String::new(), size: 0, is_file: true };
            names.iter().map(|name| ((*name).to_owned(), file.clone())).collect()
        };
        let auto = |names: &[&str]| choose(&with(names), Evaluator::Auto);
        assert_eq!(auto(&["flake.nix", "fleet.yaml"]), Ok(Chosen::Nix));
        assert_eq!(auto(&["site.yaml"]), Ok(Chosen::Site));
        assert_eq!(auto(&["manifests/a.yaml"]), Ok(Chosen::Site));
        for names in [&["flake.nix", "site.yaml"][..], &["README"]] {
            assert!(auto(names).unwrap_err().error.contains("`evaluator`"));
        }
        assert_eq!(choose(&with(&["flake.nix", "site.yaml"]), Evaluator::Site), Ok(Chosen::Site));
    }
}
