//! Finds the site directory: one function for all commands.

use std::path::{Path, PathBuf};

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct SiteSearch {
    /// `--site`.
    pub flag: Option<PathBuf>,
    /// The first variable that is set, with its name.
    pub variable: Option<(String, PathBuf)>,
    /// Where the process was started.
    pub current_dir: PathBuf,
}

/// Why there is no site.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// A flag or variable names something that is no directory.
    #[error("{by} names the site directory {}, which does not exist", path.display())]
    Missing {
        /// The flag or variable.
        by: String,
        /// What it names.
        path: PathBuf,
    },
    /// Nothing was found.
    #[error("there is no site directory: neither --site nor STEAD_SITE is given, {} is no directory, and {} has no site.yaml or manifests/", looked.join("site-config").display(), looked.display())]
    Nowhere {
        /// Where it was looked for.
        looked: PathBuf,
    },
}

/// Returns the site directory.
pub fn discover(search: &SiteSearch) -> Result<PathBuf, DiscoverError> {
    let here = &search.current_dir;
    let named = search.flag.as_ref().map(|path| ("--site".to_owned(), path)).or_else(|| {
        let (name, path) = search.variable.as_ref()?;
        Some((name.clone(), path))
    });
    if let Some((by, path)) = named {
        let path = here.join(path);
        return if path.is_dir() { Ok(path) } else { Err(DiscoverError::Missing { by, path }) };
    }
    let below = here.join("site-config");
    if below.is_dir() {
        return Ok(below);
    }
    if is_site(here) { Ok(here.clone()) } else { Err(DiscoverError::Nowhere { looked: here.clone() }) }
}

fn is_site(path: &Path) -> bool {
    path.join("site.yaml").is_file() || path.join("manifests").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 8: the flag, the variable, `site-config`, here, nowhere; what is named must exist.
    #[test]
    fn the_first_place_that_is_named_or_there_is_the_site() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().to_owned();
        let search = |flag: Option<&str>, variable: Option<&str>| {
            discover(&SiteSearch {
                flag: flag.map(PathBuf::from),
                variable: variable.map(|path| ("STEAD_SITE".to_owned(), PathBuf::from(path))),
                current_dir: here.clone(),
            })
        };
        assert_eq!(search(None, None), Err(DiscoverError::Nowhere { looked: here.clone() }));
        std::fs::create_dir(here.join("manifests")).unwrap();
        assert_eq!(search(None, None), Ok(here.clone()));
        std::fs::create_dir(here.join("site-config")).unwrap();
        assert_eq!(search(None, None), Ok(here.join("site-config")));
        std::fs::create_dir(here.join("a")).unwrap();
        std::fs::create_dir(here.join("b")).unwrap();
        assert_eq!(search(None, Some("a")), Ok(here.join("a")));
        assert_eq!(search(Some("b"), Some("a")), Ok(here.join("b")));
        for (flag, variable, by) in [(Some("x"), Some("a"), "--site"), (None, Some("x"), "STEAD_SITE")] {
            let error = search(flag, variable).unwrap_err();
            assert_eq!(error, DiscoverError::Missing { by: by.to_owned(), path: here.join("x") });
        }
    }
}
