//! Kernel parameters of the running system, by their path below `/proc/sys`.

use std::io::Read;
use std::path::PathBuf;

use rustix::io::Errno;
use serde_json::Value;
use stead_runner::operation::OpError;

use crate::disk::io_error;

/// No parameter is longer; more is not one.
const LONGEST: u64 = 64 << 10;

/// Returns the path below `/proc/sys` that `key` means: dots separate, unless a slash comes first.
pub(crate) fn path(key: &str) -> Result<String, OpError> {
    let swapped = |c: char| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = match key.find(['.', '/']) {
        Some(first) if key.as_bytes()[first] == b'/' => key.to_owned(),
        Some(_) | None => key.chars().map(swapped).collect(),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(fits);
    if path.contains('/') && path.split('/').all(part) {
        return Ok(path);
    }
    Err(OpError::invalid(format!(
        "`key`, `{}`: expected the name of a kernel parameter such as net.ipv4.ip_forward",
        key.escape_debug()
    )))
}

/// Returns the usual name of the parameter at `path`.
pub(crate) fn dotted(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}

/// Returns `value` with its white space made one blank each, as the kernel understands it.
pub(crate) fn normalised(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn file(path: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(path)
}

/// Returns the parameter's value.
pub(crate) fn read(path: &str) -> Result<Value, OpError> {
    let says = |error: std::io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => OpError::permanent(format!(
            "there is no kernel parameter `{}` here; is its module loaded?",
            dotted(path)
        )),
        Some(errno) => io_error(&file(path), "read", errno),
        None => OpError::io(file(path).display(), &error),
    };
    let mut text = Vec::new();
    std::fs::File::open(file(path))
        .and_then(|file| file.take(LONGEST).read_to_end(&mut text))
        .map_err(says)?;
    Ok(normalised(&String::from_utf8_lossy(&text)).into())
}

/// Gives the parameter a value.
pub(crate) fn set(path: &str, value: &str) -> Result<(), OpError> {
    std::fs::write(file(path), value).map_err(|error| {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INVAL | Errno::RANGE) => OpError::permanent(format!(
                "the kernel does not take `{}` for `{}`",
                value.escape_debug(),
                dotted(path)
            )),
            Some(errno) => io_error(&file(path), "write", errno),
            None => OpError::io(file(path).display(), &error),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_and_cannot_leave_their_directory() {
        assert_eq!(path("net.ipv4.ip_forward").unwrap(), "net/ipv4/ip_forward");
        assert_eq!(path("net/ipv4/conf/eth0.100/forwarding").unwrap(), "net/ipv4/conf/eth0.100/forwarding");
        assert_eq!(path("net.ipv4.conf.eth0/100.forwarding").unwrap(), "net/ipv4/conf/eth0.100/forwarding");
        for bad in
            ["", "kernel", "a..b", "a/../../etc/passwd", "..", "/etc/passwd", "a.b\nc.d", "a. b", "a.b=c"]
        {
            assert!(path(bad).is_err(), "{bad:?}");
        }
    }
}
