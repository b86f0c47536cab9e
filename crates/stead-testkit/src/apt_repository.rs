//! A repository of Debian packages in a directory, for apt's `file:` method. Needs `dpkg-deb`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository that packages can be added to.
#[derive(Debug)]
pub struct AptRepository {
    directory: PathBuf,
}

impl AptRepository {
    /// Makes an empty repository in `directory`, which must be absolute.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).expect("a directory");
        let repository = Self { directory: directory.to_owned() };
        repository.publish();
        repository
    }

    /// Builds a package of one file, `/usr/share/NAME/version`, and the files given; fields such as `Depends: x`
    /// go into its control file. Returns where the package is. It is in the index after [`AptRepository::publish`].
    ///
    /// # Panics
    /// If `dpkg-deb` fails.
    pub fn add(&self, name: &str, version: &str, fields: &[&str], conffiles: &[(&str, &str)]) -> PathBuf {
        let work = tempfile::tempdir().expect("a temporary directory");
        let tree = work.path().join("tree");
        let put = |path: &str, text: &str| {
            let path = tree.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        };
        put(&format!("usr/share/{name}/version"), version);
        let mut control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@example.org>\nDescription: for tests\n"
        );
        for field in fields {
            control.push_str(field);
            control.push('\n');
        }
        put("DEBIAN/control", &control);
        for (path, text) in conffiles {
            put(path, text);
        }
        if !conffiles.is_empty() {
            let paths: String = conffiles.iter().map(|(path, _)| format!("{path}\n")).collect();
            put("DEBIAN/conffiles", &paths);
        }
        let file = self.directory.join(format!("{name}_{version}_all.deb"));
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(&file));
        file
    }

    /// Writes the index of every package there is.
    ///
    /// # Panics
    /// If a package cannot be read.
    pub fn publish(&self) {
        let mut files: Vec<PathBuf> = std::fs::read_dir(&self.directory)
            .expect("a directory")
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        let mut index = String::new();
        for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "deb")) {
            let bytes = std::fs::read(file).expect("a package");
            let hash = <sha2::Sha256 as sha2::Digest>::digest(&bytes);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            index.push_str(run(Command::new("dpkg-deb").arg("-f").arg(file)).trim_end());
            index.push_str(&format!("\nFilename: ./{name}\nSize: {}\nSHA256: {hash}\n\n", bytes.len()));
        }
        std::fs::write(self.directory.join("Packages"), index).expect("a file");
    }

    /// Returns the line for `sources.list`.
    pub fn source(&self) -> String {
        format!("deb [trusted=yes] file:{} ./\n", self.directory.display())
    }
}

fn run(command: &mut Command) -> String {
    let out = command.output().expect("dpkg-deb can be started");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}
