//! What machines are called in paths of binaries.

/// Returns the name that binaries for a machine are kept under, from what `uname -sm` prints; none: not known.
///
/// Linux machines are named by their processor, others by system and processor (`darwin-aarch64`).
pub fn target_arch(uname: &str) -> Option<String> {
    let (system, machine) = uname.trim().split_once(' ')?;
    let machine = match machine.trim() {
        "x86_64" | "amd64" => "x86_64",
        "aarch64" | "arm64" => "aarch64",
        "armv7l" | "armv7" | "armv8l" => "armv7",
        "riscv64" => "riscv64",
        other
            if !other.is_empty()
                && other.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') =>
        {
            other
        }
        _ => return None,
    };
    match system {
        "Linux" => Some(machine.to_owned()),
        system if !system.is_empty() && system.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Some(format!("{}-{machine}", system.to_ascii_lowercase()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_as_binaries_are() {
        for (uname, name) in [
            ("Linux x86_64\n", Some("x86_64")),
            ("Linux armv7l", Some("armv7")),
            ("Linux riscv64", Some("riscv64")),
            ("Darwin arm64", Some("darwin-aarch64")),
            ("Linux ../../x", None),
            ("Linux", None),
            ("", None),
        ] {
            assert_eq!(target_arch(uname).as_deref(), name, "{uname}");
        }
    }
}
