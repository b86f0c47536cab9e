//! What texts that reach files and programs of a node may be: no line breaks, no options, no paths.

/// Whether `text` can be a login name: a lower-case letter or `_`, then those, digits or `-`, at most 32 in all.
pub fn is_account(text: &str) -> bool {
    let starts = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    text.len() <= 32
        && text.bytes().next().is_some_and(starts)
        && text.bytes().all(|byte| starts(byte) || byte.is_ascii_digit() || byte == b'-')
}

/// Whether `text` can be a domain: labels of letters, digits and `-` with dots between.
pub fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Whether `text` can name a package, with its version or architecture.
pub fn is_package(text: &str) -> bool {
    let (name, version) = text.split_once('=').unwrap_or((text, "1"));
    // To a package manager `name-` means "not this one".
    is_plain(name, b"+._:@-") && !name.ends_with('-') && is_plain(version, b"+._:~^-")
}

/// Whether `text` can name a service.
pub fn is_service(text: &str) -> bool {
    is_plain(text, b"._:@\\-")
}

/// Whether `text` is a letter or digit, then those and `others`, at most 255 in all.
fn is_plain(text: &str, others: &[u8]) -> bool {
    text.len() <= 255
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_reach_files_of_a_node_are_plain() {
        assert!(is_account("stead") && is_account("_apt-x1"));
        assert!(is_domain("lab.example") && is_domain("lab") && is_domain("3com.example"));
        for good in ["g++", "libstdc++6", "curl=8.5.0-2~deb", "libc6:amd64", "python3.12", "X11"] {
            assert!(is_package(good), "{good}");
        }
        for good in ["ssh", "getty@tty1.service", "systemd-networkd", "a_b"] {
            assert!(is_service(good), "{good}");
        }
        for bad in ["", "-x", "a\nb", "a b", "a-=1 x", "../x", "/x", "a\0", "ü"] {
            assert!(!is_account(bad) && !is_domain(bad) && !is_package(bad) && !is_service(bad), "{bad:?}");
        }
        for bad in ["a..b", ".a", "a.", "a-.b", "a_b", &"a".repeat(64)] {
            assert!(!is_domain(bad), "{bad}");
        }
        assert!(!is_package("app-") && !is_package("app-=1") && !is_package("app="));
        assert!(!is_account("Ann") && !is_account("1a") && !is_account(&"a".repeat(33)));
    }
}
