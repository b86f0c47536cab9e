//! A site directory: what machines there are, what they become, and who may know what.
//!
//! Each kind of file has a module with its key table, its reader and what it means; [`Site::read`] reads them all and
//! keeps for every file what it says and what is wrong with it, so that one broken file does not hide another. What the
//! files say of each other is checked by `stead-engine`, with the one exception of [`resolve()`], which every side of a
//! site has to agree on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};
use crate::id::SiteKey;
use crate::yaml::{self, Codes, Node, Walk};

pub mod address;
pub mod host;
pub mod keyring;
pub mod manifest;
pub mod names;
pub mod parcel;
pub mod posture;
pub mod preset;
pub(crate) mod read;
pub mod resolve;
pub mod secrets;
pub mod settings;
pub mod spec;
pub mod starter;
#[cfg(test)]
mod tests;

pub use host::Host;
pub use keyring::Keyring;
pub use manifest::Manifest;
pub use parcel::Parcel;
pub use posture::Posture;
pub use preset::Preset;
pub use resolve::{Digests, ResolveError, ResolvedSpec, resolve};
pub use secrets::Secrets;
pub use settings::SiteSettings;
pub use spec::Spec;

/// A value with the range it was read from, in the source of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it is.
    pub span: Span,
}

/// The kinds of files a site has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// `site.yaml`.
    Site,
    /// `secrets.yaml`.
    Secrets,
    /// `keyring.yaml`.
    Keyring,
    /// `hosts/*.yaml`.
    Host,
    /// `nodes/*.yaml`.
    Instance,
    /// `presets/*.yaml`.
    Preset,
    /// `postures/*.yaml`.
    Posture,
    /// `specs/*.yaml`.
    Spec,
    /// `manifests/*.yaml`.
    Manifest,
}

impl FileKind {
    /// The kinds that have a folder of their own.
    pub const FOLDERS: [Self; 6] =
        [Self::Host, Self::Instance, Self::Preset, Self::Posture, Self::Spec, Self::Manifest];

    /// Returns where files of this kind are: a file, or a folder of them.
    pub const fn place(self) -> &'static str {
        match self {
            Self::Site => "site.yaml",
            Self::Secrets => "secrets.yaml",
            Self::Keyring => "keyring.yaml",
            Self::Host => "hosts",
            Self::Instance => "nodes",
            Self::Preset => "presets",
            Self::Posture => "postures",
            Self::Spec => "specs",
            Self::Manifest => "manifests",
        }
    }

    /// Returns what the file at `path` below a site is, and its name without `.yaml`; none if no site has such a file.
    pub fn of_path(path: &str) -> Option<(Self, &str)> {
        let (folder, name) = path.split_once('/').map_or((None, path), |(folder, name)| (Some(folder), name));
        let stem = name.strip_suffix(".yaml")?;
        let kind = match folder {
            Some(folder) => Self::FOLDERS.into_iter().find(|kind| kind.place() == folder)?,
            None => {
                [Self::Site, Self::Secrets, Self::Keyring].into_iter().find(|kind| kind.place() == path)?
            }
        };
        SiteKey::parse(stem).is_ok().then_some((kind, stem))
    }

    /// Returns the path below the site of the file of this kind that is called `key`.
    pub fn path_of(self, key: &str) -> String {
        match self {
            Self::Site | Self::Secrets | Self::Keyring => self.place().to_owned(),
            Self::Host | Self::Instance | Self::Preset | Self::Posture | Self::Spec | Self::Manifest => {
                format!("{}/{key}.yaml", self.place())
            }
        }
    }
}

/// One file of a site as it was found.
#[derive(Clone)]
pub struct SiteFile {
    /// What it is.
    pub kind: FileKind,
    /// Its name without `.yaml`.
    pub stem: String,
    /// The name to call it by in messages.
    pub name: String,
    /// Its content, which may be secret, or why it cannot be read.
    pub content: Result<Vec<u8>, String>,
}

/// What one file says, as far as it can be read, and everything that is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Entry<T> {
    /// What it says.
    pub value: T,
    /// Its text, for problems that only other files show; none for files that hold secrets.
    pub source: Option<Source>,
    /// What is wrong with it.
    pub diagnostics: Diagnostics,
}

impl<T> Entry<T> {
    /// Whether the file cannot be used.
    pub fn is_broken(&self) -> bool {
        self.diagnostics.has_errors()
    }

    /// Returns the place of `span` in this file.
    pub fn place(&self, span: Span) -> Place {
        match &self.source {
            Some(source) => Place::Text { source: source.clone(), span },
            None => Place::Named("the site".to_owned()),
        }
    }
}

/// The files of one folder by name.
pub type Folder<T> = BTreeMap<SiteKey, Entry<T>>;

/// A site directory as it was read.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// `site.yaml`.
    pub settings: Entry<SiteSettings>,
    /// `secrets.yaml`.
    pub secrets: Entry<Secrets>,
    /// `keyring.yaml`.
    pub keyring: Entry<Keyring>,
    /// `hosts/`.
    pub hosts: Folder<Host>,
    /// `nodes/`: Proxmox instances.
    pub instances: Folder<Host>,
    /// `presets/`.
    pub presets: Folder<Preset>,
    /// `postures/`.
    pub postures: Folder<Posture>,
    /// `specs/`.
    pub specs: Folder<Spec>,
    /// `manifests/`.
    pub manifests: Folder<Manifest>,
    /// What is wrong with files that have no usable name.
    pub strays: Diagnostics,
}

impl Site {
    /// Returns the site that `files` make.
    pub fn read(files: Vec<SiteFile>) -> Self {
        let mut site = Self::default();
        for file in files {
            site.add(file);
        }
        site
    }

    fn add(&mut self, file: SiteFile) {
        match file.kind {
            FileKind::Site => self.settings = read_entry(file, Codes::NODE, settings::read),
            FileKind::Secrets => self.secrets = veiled(file, secrets::KNOWN_WORDS, secrets::read),
            FileKind::Keyring => self.keyring = veiled(file, keyring::KNOWN_WORDS, keyring::read),
            FileKind::Host => self.insert(file, |site| &mut site.hosts, host::read),
            FileKind::Instance => self.insert(file, |site| &mut site.instances, host::read_instance),
            FileKind::Preset => self.insert(file, |site| &mut site.presets, preset::read),
            FileKind::Posture => self.insert(file, |site| &mut site.postures, posture::read),
            FileKind::Spec => self.insert(file, |site| &mut site.specs, spec::read),
            FileKind::Manifest => {
                let stem = file.stem.clone();
                self.insert(
                    file,
                    |site| &mut site.manifests,
                    |walk, root| manifest::read(walk, root, manifest::Origin::File(&stem)),
                );
            }
        }
    }

    fn insert<T: Default>(
        &mut self,
        file: SiteFile,
        folder: impl FnOnce(&mut Self) -> &mut Folder<T>,
        reader: impl FnOnce(&mut Walk<'_>, Node<'_>) -> T,
    ) {
        match SiteKey::parse(&file.stem) {
            Ok(key) => {
                let entry = read_entry(file, Codes::NODE, reader);
                folder(self).insert(key, entry);
            }
            Err(error) => self.strays.push(
                Diagnostic::error("node/bad-name", Place::Named(file.name), error.to_string())
                    .help("rename the file"),
            ),
        }
    }

    /// Returns the manifest that `bytes` hold, which came from outside the site's folder.
    pub fn read_manifest(name: &str, bytes: Vec<u8>, origin: manifest::Origin<'_>) -> Entry<Manifest> {
        let (stem, name) = (String::new(), name.to_owned());
        let file = SiteFile { kind: FileKind::Manifest, stem, name, content: Ok(bytes) };
        read_entry(file, Codes::NODE, |walk, root| manifest::read(walk, root, origin))
    }
}

fn read_entry<T: Default>(
    file: SiteFile,
    codes: Codes,
    reader: impl FnOnce(&mut Walk<'_>, Node<'_>) -> T,
) -> Entry<T> {
    let bytes = match file.content {
        Ok(bytes) => bytes,
        Err(why) => {
            let problem = Diagnostic::error("node/bad-yaml", Place::Named(file.name), why);
            return Entry { diagnostics: Diagnostics(vec![problem]), ..Entry::default() };
        }
    };
    let source = match yaml::source(&file.name, bytes, codes) {
        Ok(source) => source,
        Err(diagnostics) => return Entry { diagnostics, ..Entry::default() },
    };
    let mut diagnostics = Diagnostics::default();
    let value = match yaml::read(&source, codes, &mut diagnostics) {
        Some(tree) => reader(&mut Walk::new(&mut diagnostics), tree.root()),
        None => T::default(),
    };
    Entry { value, source: Some(source), diagnostics: diagnostics.sorted() }
}

/// As [`read_entry`], for files of secrets: no problem carries their text.
fn veiled<T: Default>(
    file: SiteFile,
    words: &'static [&'static str],
    reader: impl FnOnce(&mut Walk<'_>, Node<'_>) -> T,
) -> Entry<T> {
    let mut entry = read_entry(file, Codes::NODE.secret(words), reader);
    let Some(source) = entry.source.take() else {
        // Not even text: the problem holds all of it.
        for diagnostic in &mut entry.diagnostics.0 {
            let (name, _) = diagnostic.place.location();
            diagnostic.place = Place::Named(name.to_owned());
        }
        return entry;
    };
    let text: Arc<str> = veil(&source.text, words).into();
    let veil_place = |place: &mut Place| {
        if let Place::Text { source, .. } = place {
            source.text = Arc::clone(&text);
        }
    };
    for diagnostic in &mut entry.diagnostics.0 {
        veil_place(&mut diagnostic.place);
        diagnostic.related.iter_mut().for_each(|(place, _)| veil_place(place));
    }
    entry
}

/// Returns `text` with stars for every word that is not one of `words`, every byte at its place.
fn veil(text: &str, words: &[&str]) -> String {
    let mut veiled = String::with_capacity(text.len());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (piece, tail) = rest.split_at(end);
        if words.contains(&piece) {
            veiled.push_str(piece);
        } else {
            for c in piece.chars() {
                match c {
                    '\n' | ' ' | ':' => veiled.push(c),
                    c => (0..c.len_utf8()).for_each(|_| veiled.push('*')),
                }
            }
        }
        rest = tail;
    }
    veiled
}
