//! `ssh.authorized_key`: the keys that open an account.
//!
//! The file is in a directory that its user owns, and is often written by root: a link or a second name planted
//! there must not lead the write elsewhere, so both are refused.

use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;
use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_runner::operation::{OpError, Params};

use super::account::Account;
use super::key_line::KeyLine;
use crate::disk::seen::{Depth, Kind};
use crate::disk::{Last, Spot};
use crate::file::edit::Lines;
use crate::file::entry::Want;
use crate::file::params::STATE;
use crate::setup::{CONFIGURE, Configure, Setup, input};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "ssh.authorized_key",
    summary: "Makes sure keys open an account over SSH, or do not.",
    root: RootSupport::Full,
    needs_root: false,
    params: &[
        ParamSpec::new("user", ParamKind::NonEmptyText, "The account.").required(),
        ParamSpec::new(
            "keys",
            ParamKind::TextList,
            "Public keys, each a line with its options and comment; a key that is there gets these.",
        )
        .required()
        .judged(|value| judge_texts(value, |text| input::problem(KeyLine::given(text)))),
        ParamSpec::new(
            "exclusive",
            ParamKind::Bool,
            "The file holds exactly these, in this order; default: false.",
        )
        .default(ParamDefault::Flag(false)),
        ParamSpec::new(
            "path",
            ParamKind::AbsolutePath,
            "The file; default: ~/.ssh/authorized_keys of the user.",
        ),
        STATE,
    ],
    ..CONFIGURE
};

pub(super) struct AuthorizedKey;

impl Configure for AuthorizedKey {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let (absent, exclusive) = (input::is_absent(params), params.flag("exclusive", false));
        let given: Vec<KeyLine> =
            params.texts("keys").iter().map(|line| KeyLine::given(line)).collect::<Result<_, _>>()?;
        if absent && exclusive {
            return Err(OpError::invalid(
                "`exclusive` says what is there; `state: absent` what is not: give one",
            ));
        }
        if given.is_empty() && !exclusive {
            return Err(OpError::invalid("`keys` is empty; only with `exclusive` that means something"));
        }
        let account = Account::find(setup, params.required("user")?)?;
        let home = setup.disk.locate(&account.home, Last::Follow)?;
        let path = match params.text("path") {
            Some(path) => match Path::new(path).strip_prefix(&account.home) {
                Ok(below) => home.path.join(below),
                Err(_) => PathBuf::from(path),
            },
            None => home.path.join(".ssh/authorized_keys"),
        };
        let (spot, seen) = setup.look(&path)?;
        let is_inside = path.starts_with(&home.path) || spot.path.starts_with(&home.path);
        if is_inside && spot.path != path {
            return Err(OpError::permanent(format!(
                "`{}` leads through a symbolic link to `{}`; that is refused",
                path.display(),
                spot.path.display()
            )));
        }
        if is_inside && setup.disk.see(&home, Depth::Attributes)?.kind != Kind::Directory {
            return Err(OpError::permanent(format!(
                "`{}`, the user's home, does not exist",
                home.path.display()
            )));
        }
        let content = setup.read(&path)?;
        if absent && content.is_none() {
            return Ok(());
        }
        refuse_second_name(&spot)?;
        let edited = edit(content.as_deref().unwrap_or_default(), &given, absent, exclusive);
        let owned = |want: Want, mode: u32| want.mode(mode).owner(account.uid, account.gid);
        let directory = home.path.join(".ssh");
        // Another directory may hold the keys of others.
        if spot.path.parent() == Some(&directory) && !absent {
            let place = setup.disk.locate(&directory, Last::Keep)?;
            let seen = setup.disk.see(&place, Depth::Attributes)?;
            setup.push(place, seen, owned(Want::new(Kind::Directory), 0o700));
        }
        setup.push(spot, seen, owned(Want::new(Kind::File).content(edited), 0o600));
        Ok(())
    }
}

/// Returns an error if the file has another name too: writing it would change that one.
fn refuse_second_name(spot: &Spot) -> Result<(), OpError> {
    let Some(directory) = &spot.directory else { return Ok(()) };
    match rustix::fs::statat(directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_nlink > 1 => Err(OpError::permanent(format!(
            "`{}` has several hard links; that is refused",
            spot.path.display()
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns the content with the keys as they should be. Pure.
fn edit(content: &[u8], given: &[KeyLine], absent: bool, exclusive: bool) -> Vec<u8> {
    if exclusive {
        let lines: Vec<String> = given.iter().map(|key| format!("{}\n", key.text)).collect();
        return lines.concat().into_bytes();
    }
    let mut lines = Lines::new(content);
    for key in given {
        let is_same = |text: &[u8]| {
            KeyLine::parse(&String::from_utf8_lossy(text)).is_some_and(|line| line.blob == key.blob)
        };
        let mut found = lines.find(is_same).into_iter();
        if !absent {
            match found.next() {
                Some(first) => lines.set(first, key.text.as_bytes()),
                None => lines.insert(lines.len(), &[key.text.as_bytes()]),
            }
        }
        // The same key twice could have other options the second time.
        for i in found.rev() {
            lines.remove(i..i + 1);
        }
    }
    lines.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
    const BOB: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g";

    fn edited(content: &str, given: &[String], absent: bool, exclusive: bool) -> String {
        let given: Vec<KeyLine> = given.iter().map(|line| KeyLine::given(line).unwrap()).collect();
        let once = edit(content.as_bytes(), &given, absent, exclusive);
        assert_eq!(edit(&once, &given, absent, exclusive), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn keys_are_known_by_blob_and_follow_the_given_line() {
        let text = format!("# mine\nno-pty {ANN} old\n{BOB} bob\n\n{ANN}");
        let new = format!("{ANN} new");
        assert_eq!(
            edited(&text, std::slice::from_ref(&new), false, false),
            format!("# mine\n{ANN} new\n{BOB} bob\n")
        );
        assert_eq!(edited(&text, std::slice::from_ref(&new), true, false), format!("# mine\n{BOB} bob\n"));
        assert_eq!(edited("# c", std::slice::from_ref(&new), false, false), format!("# c\n{ANN} new"));
        let both = [format!("{BOB} b"), new];
        assert_eq!(edited(&text, &both, false, true), format!("{BOB} b\n{ANN} new\n"));
        assert_eq!(edited(&text, &[], false, true), "");
    }
}
