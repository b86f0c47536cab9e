//! What paths of a role may be, where templates can give them.

use stead_model::bundle::ROLE_FILES;

/// Returns why `path` is no workdir.
pub(super) fn refuse_workdir(path: &str) -> Option<String> {
    let is_absolute = path.starts_with('/') && path.split('/').all(|part| part != "..");
    (!is_absolute || path.contains('\0'))
        .then(|| format!("expected an absolute path without `..`, found `{path}`"))
}

/// Returns why `path` is no place inside a workdir.
pub(super) fn refuse_inside(path: &str) -> Option<String> {
    if path.is_empty() || path.contains('\0') {
        return Some("expected a path inside the workdir, found nothing".to_owned());
    }
    if path.starts_with('/') {
        return Some(format!("`{path}` is absolute: it must be relative to the workdir"));
    }
    if path.split('/').any(|part| part == "..") {
        return Some(format!("`{path}` leaves the workdir: `..` is not allowed"));
    }
    None
}

/// Returns why `pattern` cannot choose artifacts.
pub(super) fn refuse_artifact(pattern: &str) -> Option<String> {
    if let Some(message) = refuse_inside(pattern) {
        return Some(message);
    }
    let plain = pattern.trim_start_matches("./");
    if ROLE_FILES.contains(&plain) {
        return Some(format!("`{plain}` is reserved: Stead writes it itself"));
    }
    let mut rest = pattern;
    while let Some(open) = rest.find('[') {
        // The first character of a class may be `]` itself.
        let class = rest[open + 1..].trim_start_matches(['!', '^']);
        let skip = class.chars().next().map_or(0, char::len_utf8);
        let Some(close) = class[skip..].find(']') else {
            return Some(format!("`{pattern}` has a `[` that is not closed"));
        };
        let within: Vec<char> = class[..skip + close].chars().collect();
        if let Some([from, _, to]) = within.array_windows().find(|[from, dash, to]| *dash == '-' && from > to)
        {
            return Some(format!("`{pattern}` has the range `{from}-{to}`, which is empty"));
        }
        rest = &class[skip + close + 1..];
    }
    None
}

/// Returns the name of the file that `path` is.
pub(super) fn last_part(path: &str) -> Option<&str> {
    path.rsplit('/').next().filter(|part| !matches!(*part, "" | "." | ".."))
}
