//! How packages are named: `name`, `name=version`, or the path of a file.

use std::path::{Path, PathBuf};

use stead_runner::operation::OpError;

/// One package that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// Exactly this version.
    pub(crate) version: Option<String>,
    /// Where the package is, if it is a file: a path of this machine.
    pub(crate) file: Option<PathBuf>,
}

impl Request {
    /// Returns the request for any version of `name`.
    pub(crate) fn any(name: &str) -> Self {
        Self { name: name.to_owned(), version: None, file: None }
    }

    /// Returns the request for exactly this version.
    pub(crate) fn exactly(name: &str, version: &str) -> Self {
        Self { version: Some(version.to_owned()), ..Self::any(name) }
    }
}

/// Name, version and place of a package file.
type File = (String, String, PathBuf);

/// Returns what `text` asks for; `describe` reads a package file.
pub(crate) fn parse(
    text: &str,
    describe: &mut dyn FnMut(&Path) -> Result<File, OpError>,
) -> Result<Request, OpError> {
    if text.starts_with('/') {
        let (name, version, file) = describe(Path::new(text))?;
        return Ok(Request { version: Some(version), file: Some(file), name });
    }
    let (name, version) = match text.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (text, None),
    };
    let version_fits = version.is_none_or(|version| {
        !version.is_empty() && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+-~:_^".contains(c))
    });
    if is_name(name) && version_fits {
        return Ok(Request { name: name.to_owned(), version: version.map(str::to_owned), file: None });
    }
    Err(OpError::invalid(format!(
        "`{}` is not a package: `name`, `name=version`, or the absolute path of a package file",
        text.escape_debug()
    )))
}

/// Whether a manager takes this for a name and nothing else: no option, pattern, path or `name-` for "not this".
fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let fits = |c: char| c.is_ascii_alphanumeric() || "+._-:@".contains(c);
    first && name.chars().all(fits) && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_pins_and_files_are_told_apart() {
        let mut describe = |path: &Path| Ok(("app".to_owned(), "1.0".to_owned(), path.to_owned()));
        let mut parse = |text: &str| parse(text, &mut describe);
        assert_eq!(parse("g++").unwrap(), Request::any("g++"));
        assert_eq!(
            parse("libc6:i386=2.36-9+deb12u4").unwrap(),
            Request::exactly("libc6:i386", "2.36-9+deb12u4")
        );
        assert_eq!(parse("/srv/app.deb").unwrap().file, Some("/srv/app.deb".into()));
        for bad in
            ["", "-y", "--force", "app-", "a b", "app=", "a*", "app/stable", "app=1;x", "^task", "../a.deb"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
