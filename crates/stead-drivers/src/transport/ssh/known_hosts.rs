//! known_hosts as OpenSSH reads it: which keys a host may have.
//!
//! Pure: text in, verdicts out; `host_key` reads and appends the files. A line that cannot be read allows nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// The lines of all files, in the order they were added.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    place: Place,
    marker: Marker,
    hosts: Hosts,
    kind: String,
    key: Vec<u8>,
}

/// Where a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: String,
    /// Counted from one.
    pub line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    Key,
    Authority,
    Revoked,
}

#[derive(Clone, Debug)]
enum Hosts {
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
    Patterns(String),
}

/// A key that a line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where.
    pub place: Place,
    /// The key's type, such as `ssh-ed25519`.
    pub kind: String,
    /// The key as it is sent.
    pub key: Vec<u8>,
}

/// What the files say about a key of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host's key.
    Known,
    /// It must not be trusted.
    Revoked(Known),
    /// The host has another key.
    Changed(Known),
    /// The host is in no line.
    Unknown,
}

impl KnownHosts {
    /// Adds the lines of one file.
    pub fn add(&mut self, file: &str, text: &str) {
        for (index, line) in text.lines().enumerate() {
            let place = Place { file: file.to_owned(), line: index + 1 };
            self.lines.extend(Line::parse(place, line));
        }
    }

    /// Judges the plain key `key` of the host that goes by `names`. One that matches is enough; any revocation wins.
    pub fn judge(&self, names: &[String], key: &[u8]) -> Verdict {
        if let Some(revoked) = self.revoked(names, key) {
            return Verdict::Revoked(revoked);
        }
        let mut other = None;
        for line in self.of(names, Marker::Key) {
            if line.key == key {
                return Verdict::Known;
            }
            // Of the same type first: that is the line to look at.
            if other.as_ref().is_none_or(|known: &Known| key_kind(key) != Some(&known.kind)) {
                other = Some(line.known());
            }
        }
        other.map_or(Verdict::Unknown, Verdict::Changed)
    }

    /// Returns the line that revokes `key` for the host.
    pub fn revoked(&self, names: &[String], key: &[u8]) -> Option<Known> {
        self.of(names, Marker::Revoked).find(|line| line.key == key).map(Line::known)
    }

    /// Whether `key` may sign certificates of the host.
    pub fn is_authority(&self, names: &[String], key: &[u8]) -> bool {
        self.of(names, Marker::Authority).any(|line| line.key == key)
    }

    /// Whether any authority may sign certificates of the host.
    pub fn has_authority(&self, names: &[String]) -> bool {
        self.of(names, Marker::Authority).next().is_some()
    }

    /// Returns the types of the keys known for the host, in the order of the lines.
    pub fn kinds(&self, names: &[String]) -> Vec<String> {
        let mut kinds: Vec<String> = Vec::new();
        for line in self.of(names, Marker::Key) {
            if !kinds.contains(&line.kind) {
                kinds.push(line.kind.clone());
            }
        }
        kinds
    }

    fn of<'a>(&'a self, names: &'a [String], marker: Marker) -> impl Iterator<Item = &'a Line> {
        self.lines
            .iter()
            .filter(move |line| line.marker == marker && names.iter().any(|name| line.hosts.contain(name)))
    }
}

/// Returns a host as known_hosts names it.
pub(super) fn host_name(host: &str, port: u16) -> String {
    let host = host.to_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

/// Returns a line that names `key` for `name`; with a salt of 20 bytes, hashed.
pub(super) fn new_line(name: &str, key: &str, salt: Option<&[u8]>) -> String {
    match salt {
        None => format!("{name} {key}\n"),
        Some(salt) => format!("|1|{}|{} {key}\n", BASE64.encode(salt), BASE64.encode(host_hash(salt, name))),
    }
}

fn host_hash(salt: &[u8], name: &str) -> Vec<u8> {
    // An HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(salt) else { return Vec::new() };
    mac.update(name.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Returns the type that a key's bytes begin with.
pub(super) fn key_kind(key: &[u8]) -> Option<&str> {
    let (length, rest) = key.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    std::str::from_utf8(rest.get(..length)?).ok()
}

impl Line {
    fn parse(place: Place, line: &str) -> Option<Self> {
        let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
        let mut hosts = words.next().filter(|word| !word.starts_with('#'))?;
        let marker = match hosts {
            "@cert-authority" => Marker::Authority,
            "@revoked" => Marker::Revoked,
            // Another marker means something we do not know: nothing follows from it.
            word if word.starts_with('@') => return None,
            _ => Marker::Key,
        };
        if marker != Marker::Key {
            hosts = words.next()?;
        }
        let kind = words.next()?.to_owned();
        let key = BASE64.decode(words.next()?).ok()?;
        if key_kind(&key) != Some(&kind) {
            return None;
        }
        Some(Self { place, marker, hosts: Hosts::parse(hosts)?, kind, key })
    }

    fn known(&self) -> Known {
        Known { place: self.place.clone(), kind: self.kind.clone(), key: self.key.clone() }
    }
}

impl Hosts {
    fn parse(text: &str) -> Option<Self> {
        let Some(hashed) = text.strip_prefix("|1|") else {
            return (!text.starts_with('|')).then(|| Self::Patterns(text.to_lowercase()));
        };
        let (salt, hash) = hashed.split_once('|')?;
        let (salt, hash) = (BASE64.decode(salt).ok()?, BASE64.decode(hash).ok()?);
        (hash.len() == 20).then_some(Self::Hashed { salt, hash })
    }

    fn contain(&self, name: &str) -> bool {
        match self {
            Self::Hashed { salt, hash } => host_hash(salt, name) == *hash,
            Self::Patterns(list) => super::pattern::list_matches(list, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNHzU3BnYwHVQ5mPqkxqcXVIkX9m2TGL9CFKpyxHlqo";
    const ED2: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJCWQ8bMmcBhdGzYuYEdwxkHW3wDAKy6ksxUhvmhPz0";

    fn bytes(key: &str) -> Vec<u8> {
        BASE64.decode(key.split(' ').nth(1).unwrap()).unwrap()
    }

    fn judge(text: &str, name: &str, key: &str) -> Verdict {
        let mut known = KnownHosts::default();
        known.add("file", text);
        known.judge(&[name.to_owned()], &bytes(key))
    }

    #[test]
    fn names_ports_wildcards_and_negations_are_matched() {
        for (hosts, name, found) in [
            ("h", "h", true),
            ("H.Example", "h.example", true),
            ("a,h,b", "h", true),
            ("*.example", "www.example", true),
            ("*.example", "example", false),
            ("*.example,!www.example", "www.example", false),
            ("!www.example,*.example", "mail.example", true),
            ("!h", "other", false),
            ("h", "[h]:2222", false),
            ("[h]:2222", "[h]:2222", true),
            ("[*]:22?2", "[h]:2222", true),
        ] {
            let verdict = judge(&format!("{hosts} {ED} comment\n"), name, ED);
            assert_eq!(verdict == Verdict::Known, found, "{hosts} for {name}: {verdict:?}");
        }
    }

    #[test]
    fn a_hashed_line_is_matched_and_made() {
        let line = new_line("[h]:2222", ED, Some(&[7; 20]));
        assert!(line.starts_with("|1|BwcHBw"), "{line}");
        assert_eq!(judge(&line, "[h]:2222", ED), Verdict::Known);
        assert_eq!(judge(&line, "h", ED), Verdict::Unknown);
    }

    #[test]
    fn another_key_is_a_change_with_its_place() {
        let text = format!("# comment\n\nother {ED}\nh {ED2}\n");
        let Verdict::Changed(known) = judge(&text, "h", ED) else { panic!("not changed") };
        assert_eq!(known.place, Place { file: "file".to_owned(), line: 4 });
        assert_eq!(known.key, bytes(ED2));
    }

    #[test]
    fn one_of_several_keys_is_enough() {
        assert_eq!(judge(&format!("h {ED2}\nh {ED}\n"), "h", ED), Verdict::Known);
    }

    #[test]
    fn a_revoked_key_is_refused_even_where_it_is_known() {
        for text in [format!("h {ED}\n@revoked h {ED}\n"), format!("@revoked * {ED}\nh {ED}\n")] {
            assert!(matches!(judge(&text, "h", ED), Verdict::Revoked(_)), "{text}");
        }
        assert_eq!(judge(&format!("@revoked other {ED}\nh {ED}\n"), "h", ED), Verdict::Known);
    }

    #[test]
    fn an_authority_is_no_host_key() {
        let mut known = KnownHosts::default();
        known.add("file", &format!("@cert-authority *.example {ED}\n"));
        let names = ["www.example".to_owned()];
        assert_eq!(known.judge(&names, &bytes(ED)), Verdict::Unknown);
        assert!(known.is_authority(&names, &bytes(ED)));
        assert!(!known.is_authority(&names, &bytes(ED2)));
        assert!(!known.has_authority(&["www.other".to_owned()]));
    }

    #[test]
    fn a_line_that_cannot_be_read_allows_nothing() {
        for line in [
            "h",
            "h ssh-ed25519",
            "h ssh-ed25519 ???",
            "|1|x|y ssh-ed25519 AAAA",
            "|2|aaaa|bbbb ssh-ed25519 AAAA",
            "@unknown h ssh-ed25519 AAAA",
        ] {
            assert_eq!(judge(&format!("{line}\n"), "h", ED), Verdict::Unknown, "{line}");
        }
        // A type that is not the key's.
        let lie = ED.replacen("ssh-ed25519", "ssh-rsa", 1);
        assert_eq!(judge(&format!("h {lie}\n"), "h", ED), Verdict::Unknown);
        assert_eq!(judge(&format!("@strange h {ED}\n"), "h", ED), Verdict::Unknown);
    }

    #[test]
    fn the_types_of_a_host_come_in_order() {
        let mut known = KnownHosts::default();
        known.add("file", &format!("h {ED}\nh {ED2}\nother {ED}\n"));
        assert_eq!(known.kinds(&["h".to_owned()]), ["ssh-ed25519"]);
    }
}
