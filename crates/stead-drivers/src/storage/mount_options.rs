//! Mount options as written in a table, next to those the kernel shows. Pure.
//!
//! The two lists are not the same text: the kernel leaves defaults out, spells sizes its own way and shows nothing of
//! what only programs read (`nofail`, `x-systemd…`). Only what it can show is compared.

use std::collections::BTreeMap;

/// Options that switch something on, with their opposites. The first is the default.
const SWITCHES: &[(&str, &str)] =
    &[("rw", "ro"), ("suid", "nosuid"), ("dev", "nodev"), ("exec", "noexec"), ("async", "sync")];
/// How access times are kept; the kernel shows none of them for `strictatime`.
const ACCESS_TIMES: &[&str] = &["noatime", "relatime", "strictatime"];

/// What a list of options asks for, as far as the kernel can show it.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// By the name of the default: whether its opposite holds. A directory that is bound has those of its file system
    /// where nothing is said.
    switches: BTreeMap<&'static str, bool>,
    access_time: Option<String>,
    values: BTreeMap<String, String>,
}

impl Asked {
    fn of(options: &str) -> Self {
        let mut asked = Self { switches: BTreeMap::new(), access_time: None, values: BTreeMap::new() };
        for option in options.split(',') {
            if matches!(option, "user" | "users" | "group" | "owner") {
                for default in ["suid", "dev"] {
                    asked.switches.insert(default, true);
                }
                if matches!(option, "user" | "users") {
                    asked.switches.insert("exec", true);
                }
            }
            if let Some((default, _)) = SWITCHES.iter().find(|(default, _)| *default == option) {
                asked.switches.insert(default, false);
            }
            if let Some((default, _)) = SWITCHES.iter().find(|(_, opposite)| *opposite == option) {
                asked.switches.insert(default, true);
            }
            if ACCESS_TIMES.contains(&option) {
                asked.access_time = Some(option.to_owned());
            }
            if let Some((name, value)) = option.split_once('=') {
                asked.values.insert(name.to_owned(), canonical(name, value));
            }
        }
        if !is_bind(options) {
            for (default, _) in SWITCHES {
                asked.switches.entry(default).or_insert(false);
            }
        }
        asked
    }
}

/// Returns a value in one spelling: sizes in bytes, modes without leading zeros.
fn canonical(name: &str, value: &str) -> String {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match value[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(1),
        "k" => Some(1u64 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        _ => None,
    };
    match (name, digits.parse::<u64>(), unit) {
        ("mode", Ok(_), _) => value.trim_start_matches('0').to_owned(),
        (_, Ok(number), Some(unit)) => number.saturating_mul(unit).to_string(),
        (_, _, _) => value.to_owned(),
    }
}

/// Whether a mount with the options `shown` by the kernel is not as `options` ask.
pub(super) fn differ(options: &str, shown: &str) -> bool {
    let (asked, shown) = (Asked::of(options), Asked::of(shown));
    let access_time = asked
        .access_time
        .as_ref()
        .is_some_and(|asked| *asked != shown.access_time.as_deref().unwrap_or("strictatime"));
    let value = |(name, value): (&String, &String)| {
        // A share of the memory is shown as a size.
        !value.ends_with('%') && shown.values.get(name).is_some_and(|shown| shown != value)
    };
    let switch = |(name, holds): (&&'static str, &bool)| shown.switches.get(name) != Some(holds);
    asked.switches.iter().any(switch) || access_time || asked.values.iter().any(value)
}

/// Returns the options that give a mount back what the kernel shows of it.
pub(super) fn complete(shown: &str) -> String {
    let has_access_time = shown.split(',').any(|option| ACCESS_TIMES.contains(&option));
    if has_access_time { shown.to_owned() } else { format!("{shown},strictatime") }
}

/// Returns those of the options that belong to a mount, and not to its file system.
pub(super) fn of_mount(options: &str) -> String {
    let is_own = |option: &&str| {
        let is_switch = SWITCHES.iter().any(|(default, opposite)| [default, opposite].contains(&option));
        (is_switch && !matches!(*option, "async" | "sync"))
            || ACCESS_TIMES.contains(option)
            || *option == "nodiratime"
    };
    options.split(',').filter(is_own).collect::<Vec<_>>().join(",")
}

/// Whether a list of options asks for a bind mount.
pub(super) fn is_bind(options: &str) -> bool {
    options.split(',').any(|option| matches!(option, "bind" | "rbind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_shows_is_compared() {
        for (options, shown, differs) in [
            ("defaults", "rw,relatime", false),
            ("defaults,nofail,x-systemd.automount", "rw,relatime", false),
            ("ro", "rw,relatime", true),
            ("defaults", "rw,nosuid,relatime", true),
            ("nosuid,nodev,noexec", "rw,nosuid,nodev,noexec,relatime", false),
            ("noatime", "rw,relatime", true),
            ("noatime", "rw,noatime", false),
            ("strictatime", "rw", false),
            ("size=1m,mode=0755", "rw,relatime,size=1024k,mode=755", false),
            ("size=2m", "rw,relatime,size=1024k", true),
            ("size=50%", "rw,relatime,size=1024k", false),
            ("user", "rw,nosuid,nodev,noexec,relatime", false),
            ("user,exec", "rw,nosuid,nodev,relatime", false),
            ("uid=7", "rw,relatime", false),
            ("bind", "rw,nosuid,relatime", false),
            ("bind,ro", "rw,nosuid,relatime", true),
            ("bind,suid", "rw,nosuid,relatime", true),
        ] {
            assert_eq!(differ(options, shown), differs, "{options} | {shown}");
        }
        assert!(!differ(&complete("rw,nosuid"), "rw,nosuid") && differ(&complete("rw"), "rw,relatime"));
        assert_eq!(of_mount("ro,nosuid,relatime,errors=continue,sync"), "ro,nosuid,relatime");
    }
}
