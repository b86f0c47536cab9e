//! Changing to another account on the target: `sudo` or `doas` around a command, the password on its input.

use std::ffi::OsString;

use stead_model::transport::{Become, BecomeMethod};

use crate::operation::OpError;
use crate::transport::{Command, Stdin};

/// Starts its arguments once the line that is its name has been read: the program asks for a password only if it
/// wants one, and what it leaves unread must not reach the command.
const AFTER_MARK: &str = r#"while IFS= read -r line; do [ "$line" = "$0" ] && exec "$@"; done; exit 1"#;

/// Ends the lines that are not for the command. Not a password: it has a space at its end.
const MARK: &str = "stead-go ";

/// What `sudo` says when it wants a password. It says it again if the one it got was wrong.
const PROMPT: &str = "stead: the password of the account\n";

/// An account to change to, with its password. No `Debug`: that is secret.
#[derive(Clone)]
pub struct Account {
    /// Who, and by which program.
    pub to: Become,
    /// What the program asks for.
    pub password: Option<String>,
}

impl Account {
    /// Returns `argv` as that account, and what has to be written to its input first.
    pub fn wrap(&self, argv: Vec<OsString>) -> (Vec<OsString>, Vec<u8>) {
        let user = self.to.user.clone().unwrap_or_else(|| "root".to_owned());
        let mut wrapped: Vec<OsString> = match (self.to.method, &self.password) {
            (BecomeMethod::Sudo, None) => vec!["sudo".into(), "-n".into()],
            // A cached permission would leave the password unread; the mark copes with that too.
            (BecomeMethod::Sudo, Some(_)) => vec!["sudo".into(), "-S".into(), "-p".into(), PROMPT.into()],
            (BecomeMethod::Doas, None) => vec!["doas".into(), "-n".into()],
            (BecomeMethod::Doas, Some(_)) => vec!["doas".into()],
        };
        wrapped.extend(["-u".into(), user.into(), "--".into()]);
        wrapped.extend(["/bin/sh".into(), "-c".into(), AFTER_MARK.into(), MARK.into()]);
        wrapped.extend(argv);
        let mut input = Vec::new();
        if let Some(password) = &self.password {
            input.extend_from_slice(password.as_bytes());
            input.push(b'\n');
        }
        input.extend_from_slice(MARK.as_bytes());
        input.push(b'\n');
        (wrapped, input)
    }

    /// Returns the error of a program that would not change the account.
    pub(crate) fn refusal(&self, said: &str) -> OpError {
        let program = match self.to.method {
            BecomeMethod::Sudo => "sudo",
            BecomeMethod::Doas => "doas",
        };
        let said = said.replace(PROMPT, "");
        let said = said.trim();
        let said = if said.is_empty() { "it said nothing" } else { said };
        let what = match &self.password {
            None => "set `become_password` on the host, or allow it without a password",
            Some(_) => "check `become_password` on the host, and that the account may",
        };
        OpError::permanent(format!("{program} refuses to change the account: {said}; {what}"))
    }
}

/// Whether who said this asks for the password once more: the one it got was wrong, and there is no other.
pub(crate) fn asks_again(said: &str) -> bool {
    said.matches(PROMPT).count() > 1
}

/// Returns a command as `account`, if one is given, with input to come after what is returned.
pub(crate) fn command(argv: Vec<OsString>, account: Option<&Account>) -> (Command, Vec<u8>) {
    let (argv, input) = match account {
        Some(account) => account.wrap(argv),
        None => (argv, Vec::new()),
    };
    (Command { argv, stdin: Stdin::Piped, ..Command::default() }, input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_an_argument() {
        let account = Account {
            to: Become { method: BecomeMethod::Sudo, user: Some("web".to_owned()) },
            password: Some("hush-hush".to_owned()),
        };
        let (argv, input) = account.wrap(vec!["id".into()]);
        let text: Vec<_> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert!(!text.iter().any(|word| word.contains("hush")), "{text:?}");
        assert_eq!(&text[..6], ["sudo", "-S", "-p", PROMPT, "-u", "web"]);
        assert_eq!(input, b"hush-hush\nstead-go \n");
        let (argv, input) = Account { password: None, ..account }.wrap(vec!["id".into()]);
        assert_eq!((argv[1].to_str(), input.as_slice()), (Some("-n"), &b"stead-go \n"[..]));
    }
}
