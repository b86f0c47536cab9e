//! Which algorithms are offered: the library's own, as ssh_config's lists change them.

use std::borrow::Cow;

use russh::keys::{Algorithm, PublicKey};
use russh::{AlgorithmKind, Preferred, cipher, kex, mac};
use stead_runner::transport::{TransportError, TransportErrorKind};

use super::pattern;
use super::settings::Lists;

const CERTIFICATE: &str = "-cert-v01@openssh.com";

/// Fast where the processor computes AES, and so first.
const CIPHERS: &[cipher::Name] = &[
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_GCM,
    cipher::AES_256_CTR,
    cipher::AES_192_CTR,
    cipher::AES_128_CTR,
];

/// Returns what is offered to a host with keys of `kinds`; certificates only if `certificates`.
///
/// A server chooses by the client's order: the types known for it come first, or it would show another of its keys and
/// look like a stranger.
pub(super) fn preferred(
    lists: &Lists,
    kinds: &[String],
    certificates: bool,
) -> Result<Preferred, TransportError> {
    let mut preferred = Preferred { cipher: Cow::Borrowed(CIPHERS), ..Preferred::DEFAULT };
    if let Some(list) = &lists.kex {
        let (marks, own): (Vec<kex::Name>, Vec<kex::Name>) =
            preferred.kex.iter().copied().partition(|name| is_mark(name.as_ref()));
        let known = |name: &str| kex::Name::try_from(name).ok().filter(|name| !is_mark(name.as_ref()));
        let mut names = choose("KexAlgorithms", list, &own, known, AsRef::as_ref)?;
        names.extend(marks);
        preferred.kex = names.into();
    }
    if let Some(list) = &lists.ciphers {
        let known = |name: &str| cipher::Name::try_from(name).ok().filter(|name| !is_nothing(name.as_ref()));
        preferred.cipher = choose("Ciphers", list, CIPHERS, known, AsRef::as_ref)?.into();
    }
    if let Some(list) = &lists.macs {
        let known = |name: &str| mac::Name::try_from(name).ok().filter(|name| !is_nothing(name.as_ref()));
        preferred.mac = choose("MACs", list, &preferred.mac, known, AsRef::as_ref)?.into();
    }
    let names: Vec<String> = preferred.key.iter().map(|key| key.as_str().to_owned()).collect();
    let names = match &lists.host_key {
        Some(list) => {
            let all = names.iter().flat_map(|name| [certificate_name(name), name.clone()]);
            let all: Vec<String> = all.collect();
            choose(
                "HostKeyAlgorithms",
                list,
                &all,
                |name| all.iter().find(|own| *own == name).cloned(),
                |name| name,
            )?
        }
        None => {
            let all = names.iter().map(|name| certificate_name(name)).chain(names.iter().cloned());
            let mut all: Vec<String> = all.collect();
            // Stable: among known and unknown ones the order stays.
            all.sort_by_key(|name| {
                let kind = if name.starts_with("rsa-sha2") { "ssh-rsa" } else { name.as_str() };
                !kinds.iter().any(|known| known == kind)
            });
            all
        }
    };
    let plain =
        names.iter().filter(|name| !name.ends_with(CERTIFICATE)).filter_map(|name| Algorithm::new(name).ok());
    preferred.key = plain.collect::<Vec<_>>().into();
    let signed = names
        .iter()
        .filter_map(|name| name.strip_suffix(CERTIFICATE))
        .filter_map(|name| Algorithm::new(name).ok());
    preferred.host_key_certificates =
        if certificates { signed.collect::<Vec<_>>().into() } else { Cow::Borrowed(&[]) };
    Ok(preferred)
}

/// Returns what is offered without host keys of the types of `shown`.
pub(super) fn without(mut preferred: Preferred, shown: &[PublicKey]) -> Result<Preferred, russh::Error> {
    let is_rsa = |algorithm: &Algorithm| matches!(algorithm, Algorithm::Rsa { .. });
    let is_shown = |algorithm: &Algorithm| {
        let mut kinds = shown.iter().map(PublicKey::algorithm);
        kinds.any(|kind| kind == *algorithm || (is_rsa(&kind) && is_rsa(algorithm)))
    };
    preferred.key = preferred.key.iter().filter(|algorithm| !is_shown(algorithm)).cloned().collect();
    if preferred.key.is_empty() {
        let (kind, ours, theirs) = (AlgorithmKind::Key, Vec::new(), Vec::new());
        return Err(russh::Error::NoCommonAlgo { kind, ours, theirs });
    }
    Ok(preferred)
}

fn certificate_name(name: &str) -> String {
    [name, CERTIFICATE].concat()
}

/// Names in a key exchange list that are no exchange but say what the client can.
fn is_mark(name: &str) -> bool {
    name.starts_with("ext-info-") || name.starts_with("kex-strict-") || is_nothing(name)
}

fn is_nothing(name: &str) -> bool {
    name == "none" || name == "clear"
}

/// Whether a list of `PubkeyAcceptedAlgorithms` lets a signature algorithm through.
pub(super) fn accepts(list: Option<&str>, name: &str) -> bool {
    let Some(list) = list else { return true };
    match list.chars().next() {
        // What is added or moved leaves the default in place, and that has everything.
        Some('+' | '^') => true,
        Some('-') => !list.get(1..).unwrap_or_default().split(',').any(|word| pattern::matches(word, name)),
        _ => list.split(',').any(|word| pattern::matches(word, name)),
    }
}

/// Returns what `list` makes of `own`: replaced, or with `+` extended, `-` reduced, `^` reordered. Names that this
/// program does not know are left out, as OpenSSH leaves out what a server does not know.
fn choose<T: Clone>(
    keyword: &str,
    list: &str,
    own: &[T],
    known: impl Fn(&str) -> Option<T>,
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, TransportError> {
    let (mode, names) = match list.chars().next() {
        Some(mode @ ('+' | '-' | '^')) => (Some(mode), list.get(1..).unwrap_or_default()),
        _ => (None, list),
    };
    let asked: Vec<T> = names.split(',').filter_map(|word| known(word.trim())).collect();
    let is_asked = |item: &T| asked.iter().any(|other| name(other) == name(item));
    let chosen: Vec<T> = match mode {
        None => asked,
        Some('+') => {
            let new = asked.iter().filter(|item| !own.iter().any(|other| name(other) == name(item)));
            own.iter().chain(new).cloned().collect()
        }
        Some('^') => asked.iter().chain(own.iter().filter(|item| !is_asked(item))).cloned().collect(),
        Some(_) => {
            let removed = |item: &&T| names.split(',').any(|word| pattern::matches(word.trim(), name(item)));
            own.iter().filter(|item| !removed(item)).cloned().collect()
        }
    };
    if chosen.is_empty() {
        let own: Vec<&str> = own.iter().map(name).collect();
        return Err(TransportError::new(
            TransportErrorKind::Invalid,
            format!("ssh_config: `{keyword} {list}` leaves nothing; there are {}", own.join(", ")),
        ));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(lists: &Lists, kinds: &[&str]) -> Vec<String> {
        let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let preferred = preferred(lists, &kinds, false).unwrap();
        preferred.key.iter().map(|key| key.as_str().to_owned()).collect()
    }

    #[test]
    fn known_types_come_first() {
        let none = Lists::default();
        assert_eq!(keys(&none, &[])[0], "ssh-ed25519");
        assert_eq!(keys(&none, &["ecdsa-sha2-nistp384"])[0], "ecdsa-sha2-nistp384");
        assert_eq!(keys(&none, &["ssh-rsa"])[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
        assert_eq!(keys(&none, &["ssh-rsa"]).len(), keys(&none, &[]).len());
    }

    #[test]
    fn lists_replace_extend_reduce_and_reorder() {
        let ciphers = |list: &str| {
            let lists = Lists { ciphers: Some(list.to_owned()), ..Lists::default() };
            let names = preferred(&lists, &[], false)?.cipher;
            Ok::<_, TransportError>(names.iter().map(|name| name.as_ref().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(ciphers("aes128-ctr,never-heard-of").unwrap(), ["aes128-ctr"]);
        assert_eq!(ciphers("+aes128-cbc").unwrap().last().unwrap(), "aes128-cbc");
        assert_eq!(ciphers("^aes128-ctr").unwrap()[0], "aes128-ctr");
        assert!(!ciphers("-aes*").unwrap().iter().any(|name| name.starts_with("aes")));
        assert!(ciphers("never-heard-of").unwrap_err().message.contains("chacha20"));
    }

    #[test]
    fn a_list_of_exchanges_keeps_what_the_client_says_of_itself() {
        let lists = Lists { kex: Some("curve25519-sha256".to_owned()), ..Lists::default() };
        let names = preferred(&lists, &[], false).unwrap().kex;
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        assert_eq!(names[0], "curve25519-sha256");
        assert!(names.contains(&"kex-strict-c-v00@openssh.com") && names.contains(&"ext-info-c"));
    }

    #[test]
    fn certificates_are_asked_for_only_where_an_authority_is_known() {
        let none = Lists::default();
        assert!(preferred(&none, &[], false).unwrap().host_key_certificates.is_empty());
        assert!(!preferred(&none, &[], true).unwrap().host_key_certificates.is_empty());
    }

    #[test]
    fn accepted_signatures() {
        assert!(accepts(None, "ssh-ed25519"));
        assert!(accepts(Some("rsa-*,ssh-ed25519"), "ssh-ed25519"));
        assert!(!accepts(Some("rsa-*"), "ssh-ed25519"));
        assert!(!accepts(Some("-ssh-ed*"), "ssh-ed25519"));
        assert!(accepts(Some("+x"), "ssh-ed25519"));
    }
}
