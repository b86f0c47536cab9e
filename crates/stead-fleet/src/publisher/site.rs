//! The evaluator that needs no Nix: manifests of a site, images by their hash, configuration as blobs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use stead_engine::fleet::site::{Evaluated, Repository, evaluate, is_manifest};
use stead_model::diagnostic::Place;
use stead_model::fleet::fleet_file::{Image, ImageSource};
use stead_model::fleet::{Artifact, VmSpec};
use stead_model::plan::Digest;
use stead_model::site::manifest::Origin;
use stead_model::site::{Entry, FileKind, Manifest, SiteFile};
use stead_model::{Diagnostic, Diagnostics, Site};
use tempfile::NamedTempFile;

use super::artifacts::{Artifacts, Content, Hashing, fetch, size_at};
use super::failure::{Failure, Stage};
use super::git::{Git, TreeFile};
use super::source::{FLEET_FILE, Source};

/// Whether what is there already is taken for what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// It is, if its size is right; it is read back later.
    There,
    /// It is put anew.
    Nothing,
}

/// The VMs of a commit, and what they are made of.
#[derive(Debug)]
pub(super) struct SiteWork {
    site: Site,
    /// Manifests elsewhere than where a site has them.
    elsewhere: BTreeMap<String, Entry<Manifest>>,
    found: Evaluated,
}

impl SiteWork {
    /// Evaluates a commit.
    pub(super) async fn evaluate(git: &Git, source: &Source) -> Result<Self, Failure> {
        let site = Site::read(site_files(git, source).await?);
        let elsewhere = manifests_elsewhere(git, source).await?;
        let mut work = Self { site, elsewhere, found: Evaluated::default() };
        work.found = work.run(source, &BTreeMap::new());
        if work.found.diagnostics.has_errors() {
            let failure = Failure::invalid(Stage::Evaluated, &work.all_problems());
            let vm = work.found.failed.as_ref().map(ToString::to_string);
            return Err(Failure { vm: failure.vm.clone().or(vm), ..failure });
        }
        Ok(work)
    }

    fn run(&self, source: &Source, sizes: &BTreeMap<String, u64>) -> Evaluated {
        evaluate(&Repository {
            site: &self.site,
            elsewhere: &self.elsewhere,
            fleet: &source.fleet,
            source: source.fleet_text.as_ref(),
            image_sizes: sizes,
        })
    }

    /// Returns what is wrong, with what is wrong in the files that a VM could not use.
    fn all_problems(&self) -> Diagnostics {
        let mut problems = self.found.diagnostics.clone();
        let site = &self.site;
        problems.0.extend(site.settings.diagnostics.0.clone());
        problems.0.extend(site.secrets.diagnostics.0.clone());
        problems.0.extend(site.strays.0.clone());
        let presets = site.presets.values().flat_map(|entry| &entry.diagnostics.0);
        let postures = site.postures.values().flat_map(|entry| &entry.diagnostics.0);
        let specs = site.specs.values().flat_map(|entry| &entry.diagnostics.0);
        problems.0.extend(presets.chain(postures).chain(specs).cloned());
        problems.sorted()
    }

    /// Returns the images that VMs use.
    fn images(&self, source: &Source) -> Vec<(String, Image)> {
        let images = source.fleet.images.iter();
        images
            .filter(|(name, _)| self.found.vms.iter().any(|vm| uses(vm, name)))
            .map(|(name, image)| (name.clone(), image.value.clone()))
            .collect()
    }

    /// Fills in the sizes of images without reading these.
    pub(super) async fn measure(
        &mut self,
        source: &Source,
        artifacts: Option<&Artifacts>,
    ) -> Result<(), Failure> {
        let mut sizes = BTreeMap::new();
        for (name, image) in self.images(source) {
            let away = |error| Failure::transient(Stage::Built, format!("image `{name}`: {error}"));
            let size = match &image.source {
                ImageSource::Path(path) => source.files.get(path).map(|file| file.size),
                ImageSource::Url(url) => match artifacts {
                    Some(artifacts) => match artifacts.size(image.sha256).await.map_err(away)? {
                        Some(size) => Some(size),
                        None => size_at(url).await.map_err(away)?,
                    },
                    None => size_at(url).await.map_err(away)?,
                },
            };
            let unknown = || refuse(source, &name, "its size is not known".to_owned());
            sizes.insert(name.clone(), size.ok_or_else(unknown)?);
        }
        self.found = self.run(source, &sizes);
        Ok(())
    }

    /// Puts the images that VMs use where blobs are, checks their hashes, and fills in their sizes.
    pub(super) async fn gather(
        &mut self,
        git: &Git,
        source: &Source,
        artifacts: Option<&Artifacts>,
        work: &Path,
        trust: Trust,
    ) -> Result<(), Failure> {
        let used = self.images(source);
        if used.is_empty() {
            return Ok(());
        }
        let artifacts = needed(artifacts, Stage::Built)?;
        let mut sizes = BTreeMap::new();
        for (name, image) in &used {
            let known = match trust {
                Trust::There => artifacts.size(image.sha256).await,
                Trust::Nothing => Ok(None),
            };
            let away = |error| Failure::transient(Stage::Built, format!("image `{name}`: {error}"));
            let gathering = Gathering { git, source, artifacts, work, name };
            let size = gathering.image(image, known.map_err(away)?).await?;
            sizes.insert(name.clone(), size);
        }
        self.found = self.run(source, &sizes);
        Ok(())
    }

    /// Puts the configurations where blobs are.
    pub(super) async fn store(&self, artifacts: Option<&Artifacts>, trust: Trust) -> Result<(), Failure> {
        for (sha256, bytes) in &self.found.blobs {
            let artifacts = needed(artifacts, Stage::Cached)?;
            let failed = |error| Failure::transient(Stage::Cached, format!("blob {sha256}: {error}"));
            let known = match trust {
                Trust::There => artifacts.size(*sha256).await.map_err(failed)?,
                Trust::Nothing => None,
            };
            if known != Some(bytes.len() as u64) {
                artifacts.put(*sha256, Content::Bytes(bytes.clone())).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Reads everything back that a worker will fetch.
    pub(super) async fn verify(&self, artifacts: Option<&Artifacts>) -> Result<(), Failure> {
        verify_blobs(&self.found.vms, artifacts).await
    }

    /// Returns the VMs.
    pub(super) fn vms(&self) -> &[VmSpec] {
        &self.found.vms
    }
}

/// Reads the blobs of VMs back from where workers fetch them.
pub(super) async fn verify_blobs(vms: &[VmSpec], artifacts: Option<&Artifacts>) -> Result<(), Failure> {
    let mut good = BTreeSet::new();
    for vm in vms {
        for (field, artifact) in vm.artifacts() {
            let Artifact::Blob { sha256, size, .. } = artifact else { continue };
            if !good.insert((*sha256, *size)) {
                continue;
            }
            let artifacts = needed(artifacts, Stage::CacheVerified)?;
            if let Err(error) = artifacts.verify(*sha256, *size).await {
                let text = format!("VM `{}`, {field}: blob {sha256}: {error}", vm.id);
                let failure = Failure::transient(Stage::CacheVerified, text);
                return Err(Failure { vm: Some(vm.id.to_string()), ..failure });
            }
        }
    }
    Ok(())
}

fn uses(vm: &VmSpec, image: &str) -> bool {
    vm.artifacts().iter().any(|(field, artifact)| {
        field != "runtime.config" && matches!(artifact, Artifact::Blob { name, .. } if name == image)
    })
}

fn needed(artifacts: Option<&Artifacts>, stage: Stage) -> Result<&Artifacts, Failure> {
    let why = "VMs of this commit need blobs, and nothing says where these are put: set `artifacts` of publisher.yaml to a directory or an https address";
    artifacts.ok_or_else(|| Failure::permanent(stage, why))
}

/// Reads the files of a site.
async fn site_files(git: &Git, source: &Source) -> Result<Vec<SiteFile>, Failure> {
    let known: Vec<(String, TreeFile)> = source
        .files
        .iter()
        .filter(|(path, _)| path.as_str() != FLEET_FILE && FileKind::of_path(path).is_some())
        .map(|(path, file)| (path.clone(), file.clone()))
        .collect();
    let contents = source.content(git, &known).await?;
    let mut files: Vec<SiteFile> = known
        .iter()
        .zip(contents)
        .filter_map(|((path, _), content)| {
            let (kind, stem) = FileKind::of_path(path)?;
            Some(SiteFile { kind, stem: stem.to_owned(), name: source.shown(path), content })
        })
        .collect();
    let has_secrets = source.files.contains_key(FileKind::Secrets.place());
    if source.files.contains_key("secrets.yaml.enc") && !has_secrets {
        let why = "the secrets are encrypted, and a fleet decrypts none; name keys of people in secrets.yaml without any secret";
        files.push(SiteFile {
            kind: FileKind::Secrets,
            stem: "secrets".to_owned(),
            name: source.shown("secrets.yaml.enc"),
            content: Err(why.to_owned()),
        });
    }
    Ok(files)
}

/// Reads the manifests of a commit that `fleet.yaml` names and that are not where a site has them.
async fn manifests_elsewhere(
    git: &Git,
    source: &Source,
) -> Result<BTreeMap<String, Entry<Manifest>>, Failure> {
    let files = source.files.iter();
    let matched =
        files.filter(|(path, _)| FileKind::of_path(path).is_none() && is_manifest(&source.fleet, path));
    let matched: Vec<(String, TreeFile)> = matched.map(|(path, file)| (path.clone(), file.clone())).collect();
    let contents = source.content(git, &matched).await?;
    let read = matched.into_iter().zip(contents).map(|((path, _), content)| {
        let name = source.shown(&path);
        let entry = match content {
            Ok(bytes) => Site::read_manifest(&name, bytes, Origin::Elsewhere),
            Err(why) => {
                let problem = Diagnostic::error("node/bad-yaml", Place::Named(name), why);
                Entry { diagnostics: Diagnostics(vec![problem]), ..Entry::default() }
            }
        };
        (path, entry)
    });
    Ok(read.collect())
}

/// One image on its way to where blobs are.
struct Gathering<'a> {
    git: &'a Git,
    source: &'a Source,
    artifacts: &'a Artifacts,
    work: &'a Path,
    name: &'a str,
}

impl Gathering<'_> {
    /// Makes sure an image is where blobs are, and returns its size; `known` is that of what is there.
    async fn image(&self, image: &Image, known: Option<u64>) -> Result<u64, Failure> {
        let temporary =
            || NamedTempFile::new_in(self.work).map(Hashing::new).map_err(|error| self.away(&error));
        match &image.source {
            ImageSource::Path(path) => {
                let Some(file) = self.source.files.get(path).filter(|file| file.is_file) else {
                    return Err(refuse(self.source, self.name, format!("the commit has no file `{path}`")));
                };
                if known == Some(file.size) {
                    return Ok(file.size);
                }
                let mut read = temporary()?;
                let streamed = self.git.stream(&file.object, &mut read).await;
                streamed.map_err(|error| Failure::git(Stage::Built, &error))?;
                self.keep(image.sha256, read).await
            }
            ImageSource::Url(url) => {
                if let Some(size) = known {
                    return Ok(size);
                }
                let mut read = temporary()?;
                fetch(url, &mut read).await.map_err(|error| self.away(&error))?;
                self.keep(image.sha256, read).await
            }
        }
    }

    /// Puts an image that was read, if it is what `fleet.yaml` says.
    async fn keep(&self, sha256: Digest, read: Hashing<NamedTempFile>) -> Result<u64, Failure> {
        let size = read.size();
        let checked = read.check(sha256, None);
        let file = checked.map_err(|error| refuse(self.source, self.name, error.to_string()))?;
        let put = self.artifacts.put(sha256, Content::File(file.path().to_owned())).await;
        put.map_err(|error| self.away(&error))?;
        Ok(size)
    }

    fn away(&self, error: &io::Error) -> Failure {
        Failure::transient(Stage::Built, format!("image `{}`: {error}", self.name))
    }
}

/// Returns the failure that an image is not what `fleet.yaml` says.
fn refuse(source: &Source, name: &str, why: String) -> Failure {
    let place = match (&source.fleet_text, source.fleet.images.get(name)) {
        (Some(text), Some(image)) => Place::Text { source: text.clone(), span: image.span },
        (Some(_) | None, Some(_) | None) => Place::Named(FLEET_FILE.to_owned()),
    };
    let message = format!("image `{name}`: {why}");
    let problem = Diagnostic::error("fleet/bad-image", place, message);
    Failure::invalid(Stage::Built, &Diagnostics(vec![problem]))
}
