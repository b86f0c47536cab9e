//! Reads a site directory, within bounds.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stead_model::diagnostic::Place;
use stead_model::site::{FileKind, SiteFile};
use stead_model::yaml::Codes;
use stead_model::{Diagnostic, Diagnostics, Site};

/// The most files one folder may have.
const MOST_FILES: usize = 100_000;

/// What is odd about secrets that Git has. Only those who check a site are told: whoever cloned it cannot mend it.
pub const TRACKED_SECRETS: &str = "node/tracked-secrets";

/// Which manifests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manifests<'a> {
    /// All.
    All,
    /// The one of this name, if it is there.
    One(&'a str),
    /// None.
    None,
}

/// A site as it was found on disk.
#[derive(Debug)]
pub struct Loaded {
    /// What its files say.
    pub site: Site,
    /// What is odd about the directory itself.
    pub warnings: Diagnostics,
    /// The names of all manifests, read or not.
    pub manifest_names: Vec<String>,
}

/// Why a site cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A directory cannot be listed.
    #[error("failed to list {}", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A folder is too large.
    #[error("{} has more than {MOST_FILES} files", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
}

/// Reads the site in `directory`; `shown` is what to call the directory in messages, empty for the current one.
pub fn load(directory: &Path, shown: &Path, manifests: Manifests<'_>) -> Result<Loaded, LoadError> {
    let mut loading = Loading { directory, shown, files: Vec::new(), warnings: Diagnostics::default() };
    loading.top(FileKind::Site);
    loading.secrets();
    loading.top(FileKind::Keyring);
    let mut manifest_names = Vec::new();
    for kind in FileKind::FOLDERS {
        let folder = loading.folder_of(kind);
        let names = loading.list(&folder)?;
        for name in &names {
            let Some(stem) = name.strip_suffix(".yaml") else {
                loading.note_other(&folder, name);
                continue;
            };
            if kind == FileKind::Manifest {
                manifest_names.push(stem.to_owned());
                match manifests {
                    Manifests::One(wanted) if wanted != stem => continue,
                    Manifests::None => continue,
                    Manifests::All | Manifests::One(_) => {}
                }
            }
            loading.add(kind, stem, &format!("{folder}/{name}"));
        }
    }
    let Loading { files, warnings, .. } = loading;
    Ok(Loaded { site: Site::read(files), warnings, manifest_names })
}

struct Loading<'a> {
    directory: &'a Path,
    shown: &'a Path,
    files: Vec<SiteFile>,
    warnings: Diagnostics,
}

impl Loading<'_> {
    fn shown(&self, path: &str) -> String {
        self.shown.join(path).display().to_string()
    }

    fn warn(&mut self, code: &'static str, path: &str, message: impl Into<String>, help: &str) {
        let place = Place::Named(self.shown(path));
        self.warnings.push(Diagnostic::warning(code, place, message).help(help));
    }

    fn top(&mut self, kind: FileKind) {
        let path = kind.place();
        let other = path.replace(".yaml", ".yml");
        if self.directory.join(&other).symlink_metadata().is_ok() {
            self.warn("node/bad-name", &other, "only `*.yaml` is read", &format!("rename it to `{path}`"));
        }
        if self.directory.join(path).symlink_metadata().is_ok() {
            self.add(kind, path.strip_suffix(".yaml").unwrap_or(path), path);
        }
    }

    fn secrets(&mut self) {
        let path = FileKind::Secrets.place();
        let plain = self.directory.join(path);
        if plain.symlink_metadata().is_ok()
            && plain.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
        {
            match is_tracked(&plain) {
                true => self.warn(
                    TRACKED_SECRETS,
                    path,
                    "whoever has the repository reads this file: Git tracks it",
                    "take it out of Git (git rm --cached), make new secrets, and chmod 600 the file",
                ),
                false => {
                    self.warn("node/readable-secrets", path, "others may read this file", "chmod 600 it");
                }
            }
        }
        self.top(FileKind::Secrets);
        if plain.symlink_metadata().is_ok() {
            return;
        }
        if self.directory.join("secrets.yaml.enc").symlink_metadata().is_ok() {
            let why = "the secrets are encrypted, and only there; decrypt them first: sops --decrypt secrets.yaml.enc > secrets.yaml && chmod 600 secrets.yaml";
            let name = self.shown("secrets.yaml.enc");
            let file = SiteFile {
                kind: FileKind::Secrets,
                stem: "secrets".to_owned(),
                name,
                content: Err(why.to_owned()),
            };
            self.files.push(file);
        }
    }

    /// Returns the folder of `kind`: its own, or that of older sites if it is missing.
    fn folder_of(&mut self, kind: FileKind) -> String {
        let folder = kind.place().to_owned();
        let older = format!("v2/{folder}");
        let has_older = match kind {
            FileKind::Spec | FileKind::Preset | FileKind::Posture => self.directory.join(&older).is_dir(),
            FileKind::Site
            | FileKind::Secrets
            | FileKind::Keyring
            | FileKind::Host
            | FileKind::Instance
            | FileKind::Manifest => false,
        };
        if self.directory.join(&folder).is_dir() || !has_older {
            return folder;
        }
        self.warn(
            "node/older-folder",
            &older,
            format!("this is the older place of `{folder}/`"),
            "move it up",
        );
        older
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, LoadError> {
        let path = self.directory.join(folder);
        let failed = |source| LoadError::List { path: path.clone(), source };
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
            if names.len() > MOST_FILES {
                return Err(LoadError::TooMany { path });
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn note_other(&mut self, folder: &str, name: &str) {
        if let Some(stem) = name.strip_suffix(".yml") {
            let path = format!("{folder}/{name}");
            self.warn(
                "node/bad-name",
                &path,
                "only `*.yaml` is read",
                &format!("rename it to `{stem}.yaml`"),
            );
        }
    }

    fn add(&mut self, kind: FileKind, stem: &str, path: &str) {
        let content =
            read_bounded(&self.directory.join(path)).map_err(|error| format!("it cannot be read: {error}"));
        self.files.push(SiteFile { kind, stem: stem.to_owned(), name: self.shown(path), content });
    }
}

/// Whether a file is in the index of the Git work tree around it: then everybody who has the repository has its text, and
/// Git does not keep who may read it.
fn is_tracked(file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let Some(tree) = file.ancestors().skip(1).find(|directory| directory.join(".git").exists()) else {
        return false;
    };
    let Ok(path) = file.strip_prefix(tree) else { return false };
    let git = tree.join(".git");
    // In a linked work tree `.git` is a file that says where the rest is.
    let linked = std::fs::read_to_string(&git).ok();
    let own =
        linked.as_deref().and_then(|text| text.strip_prefix("gitdir: ")).map(|at| tree.join(at.trim_end()));
    let Ok(index) = std::fs::read(own.unwrap_or(git).join("index")) else { return false };
    // Entries end with their path and a zero.
    let mut entry = path.as_os_str().as_encoded_bytes().to_vec();
    entry.push(0);
    index.windows(entry.len()).any(|window| window == entry)
}

/// Returns what is in a file; of one that is too large a little more than may be read, so that the reader refuses it.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for its other end.
    let no_wait = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file: File = OpenOptions::new().read(true).custom_flags(no_wait).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(Codes::NODE.max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn site(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        dir
    }

    fn read(dir: &tempfile::TempDir) -> Loaded {
        load(dir.path(), Path::new("s"), Manifests::All).unwrap()
    }

    /// Git does not keep who may read a file: of one that it tracks the warning says so, in the first clone and in any other.
    #[test]
    fn secrets_that_git_tracks_are_told_of_with_what_to_do() {
        let dir = site(&[("lab/site.yaml", "name: lab\n"), ("lab/secrets.yaml", "")]);
        let allow = |mode| {
            let of = dir.path().join("lab/secrets.yaml");
            fs::set_permissions(of, fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(0o644);
        let git = |words: &[&str]| {
            let mut command = std::process::Command::new("git");
            assert!(command.args(words).current_dir(dir.path()).status().unwrap().success());
        };
        let warned = || {
            let loaded = load(&dir.path().join("lab"), Path::new("lab"), Manifests::All).unwrap();
            let told = loaded.warnings.iter().map(ToString::to_string);
            told.collect::<Vec<_>>()
        };
        let plain = [
            "warning[node/readable-secrets]: lab/secrets.yaml: others may read this file (help: chmod 600 it)",
        ];
        assert_eq!(warned(), plain);
        git(&["init", "--quiet"]);
        assert_eq!(warned(), plain);
        git(&["add", "lab/site.yaml"]);
        assert_eq!(warned(), plain);
        git(&["add", "lab/secrets.yaml"]);
        let tracked = warned();
        assert!(tracked.len() == 1 && tracked[0].contains(TRACKED_SECRETS), "{tracked:?}");
        allow(0o600);
        assert!(warned().is_empty());
        allow(0o640);
        git(&["rm", "--quiet", "--cached", "lab/secrets.yaml"]);
        assert_eq!(warned(), plain);
    }

    #[test]
    fn all_folders_are_read_and_odd_files_are_told() {
        let dir = site(&[
            ("site.yaml", "name: lab\n"),
            ("secrets.yaml", ""),
            ("hosts/a.yaml", "driver: qemu\n"),
            ("specs/b.yml", ""),
            ("keyring.yml", ""),
            ("specs/readme.md", "x"),
            ("v2/specs/c.yaml", "schema_version: 1\n"),
            ("v2/presets/p.yaml", "{cores: 1, memory: 512, disk: 1}\n"),
            ("manifests/m.yaml", "x"),
        ]);
        fs::create_dir(dir.path().join("hosts/d.yaml")).unwrap();
        fs::set_permissions(dir.path().join("secrets.yaml"), fs::Permissions::from_mode(0o640)).unwrap();
        let loaded = read(&dir);
        assert_eq!(loaded.site.settings.value.name.as_str(), "lab");
        assert!(loaded.site.specs.is_empty(), "the folder is there, so the older one is not read");
        assert_eq!(loaded.site.presets.len(), 1);
        assert_eq!(
            loaded.site.hosts["d"].diagnostics.to_string(),
            "error[node/bad-yaml]: s/hosts/d.yaml: it cannot be read: it is not a file"
        );
        let told: Vec<String> =
            loaded.warnings.iter().map(|warning| format!("{} {}", warning.code, warning.place)).collect();
        assert_eq!(
            told,
            [
                "node/readable-secrets s/secrets.yaml",
                "node/bad-name s/keyring.yml",
                "node/older-folder s/v2/presets",
                "node/bad-name s/specs/b.yml"
            ]
        );
        let one = load(dir.path(), Path::new(""), Manifests::One("other")).unwrap();
        assert!(one.site.manifests.is_empty() && one.manifest_names == ["m"]);
    }

    #[test]
    fn encrypted_secrets_say_how_to_decrypt_them() {
        let dir = site(&[("secrets.yaml.enc", "x")]);
        let told = read(&dir).site.secrets.diagnostics.to_string();
        assert!(told.contains("sops --decrypt") && told.contains("s/secrets.yaml.enc"), "{told}");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read_whole() {
        let dir = site(&[("specs/a.yaml", "")]);
        let file = fs::File::create(dir.path().join("specs/a.yaml")).unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(read(&dir).site.specs["a"].diagnostics.to_string().contains("16 MiB"));
    }
}
