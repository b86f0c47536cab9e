//! Names that no layer sets, whatever the catalogue.

/// Why a name is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A flag says what it would: this one, except that a catalogue may call `--profile` otherwise.
    Flag(&'static str),
    /// It begins with `STEAD_`: Stead sets it for its children.
    Own,
    /// It makes a child run other code.
    Code,
}

/// Returns why `name` is reserved, if it is.
pub fn reserved(name: &str) -> Option<Reserved> {
    match name {
        "ONLY" => Some(Reserved::Flag("--only")),
        "DRY_RUN" => Some(Reserved::Flag("--dry-run")),
        "DELETE_MODE" => Some(Reserved::Flag("--delete")),
        "PROFILE_FILE" => Some(Reserved::Flag("--profile")),
        "BASH_ENV" | "LD_PRELOAD" | "LD_AUDIT" | "LD_LIBRARY_PATH" => Some(Reserved::Code),
        name if name.starts_with("STEAD_") => Some(Reserved::Own),
        _ => None,
    }
}

/// Whether `name` is reserved.
pub fn is_reserved(name: &str) -> bool {
    reserved(name).is_some()
}
