//! Who gathers: the account and the program.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use stead_model::facts::{Stead, User};

use super::files;
use crate::disk::body::hash;

/// Returns the account of this process.
pub fn user() -> User {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = files::text("/etc/passwd").unwrap_or_default();
    let (name, home) = find(&passwd, uid).unzip();
    // An account that only a directory service knows has at least its home in the environment.
    let home = home.or_else(|| std::env::var_os("HOME").and_then(|home| home.into_string().ok()));
    User { name, uid: Some(uid), home: home.filter(|home| !home.is_empty()) }
}

/// Returns name and home of `uid` in the text of a `passwd` file.
fn find(passwd: &str, uid: u32) -> Option<(String, String)> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (name, id, home) = (fields.first()?, fields.get(2)?, fields.get(5)?);
        (id.parse() == Ok(uid)).then(|| ((*name).to_owned(), (*home).to_owned()))
    })
}

pub(super) fn stead() -> Stead {
    Stead { version: Some(env!("CARGO_PKG_VERSION").to_owned()), sha256: binary_sha256().map(str::to_owned) }
}

/// Returns the SHA-256 of the running program's file, found out once per process.
pub fn binary_sha256() -> Option<&'static str> {
    static SHA256: OnceLock<Option<String>> = OnceLock::new();
    SHA256
        .get_or_init(|| {
            if let Some(named) = std::env::current_exe().ok().as_deref().and_then(hash_in_path) {
                return Some(named);
            }
            // Opened by this name it is the running file, even if another took its place since.
            let running = Path::new("/proc/self/exe");
            let file = File::open(running).or_else(|_| File::open(std::env::current_exe()?));
            hash(&mut file.ok()?).ok().map(|(_, sha256)| sha256)
        })
        .as_deref()
}

/// Returns the hash in the path of an uploaded program, `…/bin/SHA256/stead`: it was compared when it came there.
pub(crate) fn hash_in_path(path: &Path) -> Option<String> {
    let (file, directory) = (path.file_name()?, path.parent()?);
    let is_kept = file == "stead" && directory.parent()?.file_name()? == "bin";
    let name = directory.file_name()?.to_str()?;
    let is_hash = name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_kept && is_hash).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uploaded_program_is_named_by_its_hash() {
        let hash = "0a".repeat(32);
        let at = |path: &str| hash_in_path(Path::new(&path.replace('#', &hash)));
        assert_eq!(at("/var/lib/stead/bin/#/stead"), Some(hash.clone()));
        for other in
            ["/usr/bin/stead", "/x/bin/#/stead (deleted)", "/x/lib/#/stead", "/bin/abc/stead", "stead"]
        {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn an_account_is_found_by_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1000:1000:,,,:/home/ann:/bin/sh\n";
        assert_eq!(find(passwd, 1000), Some(("ann".to_owned(), "/home/ann".to_owned())));
        assert_eq!(find(passwd, 7), None);
    }
}
