//! Names that no catalogue may declare and no layer may set.

/// Names that flags say, with the flags.
pub const FLAGS: [(&str, &str); 4] = [
    ("ONLY", "--only"),
    ("DRY_RUN", "--dry-run"),
    ("DELETE_MODE", "--delete"),
    ("PROFILE_FILE", "--profile"),
];

/// Names that make a child run code.
pub const DANGEROUS: [&str; 6] =
    ["BASH_ENV", "SHELLOPTS", "PS4", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"];

/// What names that Stead sets for steps begin with.
pub const OWN_PREFIX: &str = "STEAD_";

/// Whether `name` is one that Stead itself gives to steps, or keeps from them.
pub(super) fn is_own(name: &str) -> bool {
    name.starts_with(OWN_PREFIX) || FLAGS.iter().any(|(reserved, _)| *reserved == name)
}

/// Whether no variable can be called `name`.
pub(super) fn is_reserved(name: &str) -> bool {
    is_own(name) || DANGEROUS.contains(&name)
}
