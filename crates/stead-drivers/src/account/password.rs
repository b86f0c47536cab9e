//! The password field of an account: a hash, perhaps locked. Pure.

use stead_runner::operation::OpError;

/// What a password field should be. No `Debug`: it may hold a hash.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Password {
    pub(super) hash: Option<String>,
    pub(super) locked: Option<bool>,
    /// `hash` is the whole field, its lock included.
    pub(super) literal: bool,
}

impl Password {
    /// Whether anything is wished at all.
    pub(super) fn is_given(&self) -> bool {
        self.hash.is_some() || self.locked.is_some()
    }

    /// Returns the field that fulfils the wish where `seen` is now; what is not specified is kept.
    pub(super) fn wanted(&self, name: &str, seen: Option<&str>) -> Result<String, OpError> {
        if let Some(field) = self.hash.as_ref().filter(|_| self.literal) {
            return Ok(field.clone());
        }
        let seen = seen.unwrap_or("!");
        let hash = self.hash.as_deref().unwrap_or_else(|| bare(seen));
        let keeps_lock = is_locked(seen) && has_hash(seen);
        match self.locked {
            Some(false) if bare(hash).is_empty() => Err(OpError::permanent(format!(
                "`{name}` has no password: `locked: false` would let anybody in; give `password_hash` too"
            ))),
            Some(false) => Ok(bare(hash).to_owned()),
            Some(true) => Ok(lock(hash)),
            None if keeps_lock => Ok(lock(hash)),
            None => Ok(hash.to_owned()),
        }
    }
}

/// Returns the hash, if it is one or says that there is none; the value itself is never shown.
pub(super) fn check_hash(hash: &str) -> Result<&str, OpError> {
    let is_none = matches!(hash, "!" | "!!" | "*" | "!*");
    let printable = hash.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    let modular = hash.starts_with('$') && hash.split('$').count() >= 4;
    let traditional = hash.len() == 13 && !hash.contains('$');
    if printable && (is_none || modular || traditional) {
        return Ok(hash);
    }
    Err(OpError::invalid(
        "`password_hash` is not a crypt(3) hash such as `$6$…` (make one with `openssl passwd -6`), nor `*` for none",
    ))
}

/// Whether no password opens the account.
pub(super) fn is_locked(field: &str) -> bool {
    field.starts_with('!')
}

/// Returns the field without its lock.
pub(super) fn bare(field: &str) -> &str {
    field.trim_start_matches('!')
}

fn has_hash(field: &str) -> bool {
    !matches!(bare(field), "" | "*")
}

fn lock(hash: &str) -> String {
    if is_locked(hash) { hash.to_owned() } else { format!("!{hash}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(hash: Option<&str>, locked: Option<bool>, seen: &str) -> Option<String> {
        let password = Password { hash: hash.map(str::to_owned), locked, literal: false };
        password.wanted("zoe", Some(seen)).ok()
    }

    #[test]
    fn the_lock_is_kept_unless_it_is_named() {
        assert_eq!(wanted(Some("$6$s$new"), None, "!$6$s$old").as_deref(), Some("!$6$s$new"));
        assert_eq!(wanted(Some("$6$s$new"), None, "$6$s$old").as_deref(), Some("$6$s$new"));
        assert_eq!(wanted(None, Some(true), "$6$s$old").as_deref(), Some("!$6$s$old"));
        assert_eq!(wanted(None, Some(false), "!$6$s$old").as_deref(), Some("$6$s$old"));
        assert_eq!(wanted(None, Some(true), "!$6$s$old").as_deref(), Some("!$6$s$old"));
    }

    #[test]
    fn an_account_without_a_password_gets_a_usable_one_and_is_never_opened_without() {
        for none in ["!", "*", "!*"] {
            assert_eq!(wanted(Some("$6$s$new"), None, none).as_deref(), Some("$6$s$new"), "{none}");
        }
        assert_eq!(wanted(None, Some(false), "!"), None);
        assert_eq!(wanted(Some("!"), None, "$6$s$old").as_deref(), Some("!"));
    }

    #[test]
    fn a_plain_password_is_refused_and_not_shown() {
        for plain in ["hunter2", "", "$6$a b", "$6$x:y$z", "$", "$6$x"] {
            let error = check_hash(plain).unwrap_err();
            assert!(
                plain.is_empty() || plain.starts_with('$') || !error.message.contains(plain),
                "{}",
                error.message
            );
        }
        for hash in ["$6$salt$hash", "$y$j9T$abc$def", "*", "!", "abcdefghijklm"] {
            assert!(check_hash(hash).is_ok(), "{hash}");
        }
    }
}
