//! The numbers of a JSON document by their pointers, read without keeping the document.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// The numbers of one document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers(pub(super) BTreeMap<String, Number>);

/// Why the numbers of a file are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NumbersError {
    #[error("it is not valid JSON")]
    NotJson,
    #[error("with it there are more than {} numbers", super::load::MOST_NUMBERS)]
    TooMany,
}

impl Numbers {
    /// Reads a document; its numbers are taken off `left`, which they must not exceed.
    pub(crate) fn read(bytes: &[u8], left: &mut usize) -> Result<Self, NumbersError> {
        let mut found = Found { numbers: BTreeMap::new(), most: *left, is_too_many: false };
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let read = Place { pointer: &mut String::new(), found: &mut found }.deserialize(&mut deserializer);
        match read.and_then(|()| deserializer.end()) {
            Ok(()) => {
                *left -= found.numbers.len();
                Ok(Self(found.numbers))
            }
            Err(_) if found.is_too_many => Err(NumbersError::TooMany),
            Err(_) => Err(NumbersError::NotJson),
        }
    }
}

struct Found {
    numbers: BTreeMap<String, Number>,
    most: usize,
    is_too_many: bool,
}

/// A place in the document, whose value is read.
struct Place<'a> {
    pointer: &'a mut String,
    found: &'a mut Found,
}

impl Place<'_> {
    fn note<E: serde::de::Error>(self, number: Number) -> Result<(), E> {
        self.found.numbers.insert(self.pointer.clone(), number);
        self.found.is_too_many = self.found.numbers.len() > self.found.most;
        if self.found.is_too_many { Err(E::custom("too many numbers")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.note(number.into())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.note(number.into())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.note(Number::from_f64(number).ok_or_else(|| E::custom("a number that is none"))?)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let own = self.pointer.len();
        for index in 0_u64.. {
            self.pointer.push_str(&format!("/{index}"));
            let item = items.next_element_seed(Place { pointer: self.pointer, found: self.found })?;
            self.pointer.truncate(own);
            if item.is_none() {
                return Ok(());
            }
        }
        Err(A::Error::custom("a list without end"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let own = self.pointer.len();
        while let Some(key) = fields.next_key::<String>()? {
            self.pointer.push('/');
            self.pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            fields.next_value_seed(Place { pointer: self.pointer, found: self.found })?;
            self.pointer.truncate(own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, most: usize) -> (Result<Vec<String>, NumbersError>, usize) {
        let mut left = most;
        let numbers = Numbers::read(text.as_bytes(), &mut left);
        let shown = |numbers: Numbers| numbers.0.into_iter().map(|(at, number)| format!("{at}={number}"));
        (numbers.map(|numbers| shown(numbers).collect()), left)
    }

    #[test]
    fn numbers_are_found_by_their_pointers() {
        let text =
            r#"{"a/b~": [1, {"x": -2, "s": "3"}, 2.5], "n": null, "t": true, "big": 18446744073709551615}"#;
        let (found, left) = read(text, 10);
        assert_eq!(
            found.unwrap(),
            ["/a~1b~0/0=1", "/a~1b~0/1/x=-2", "/a~1b~0/2=2.5", "/big=18446744073709551615"]
        );
        assert_eq!(left, 6);
        assert_eq!(read("5", 1), (Ok(vec!["=5".to_owned()]), 0));
    }

    #[test]
    fn what_is_no_document_or_has_too_many_numbers_is_said_and_costs_nothing() {
        for text in ["", "{", "[1] 2", "{\"a\": 1", "nonsense"] {
            assert_eq!(read(text, 5), (Err(NumbersError::NotJson), 5), "{text}");
        }
        assert_eq!(read(&"[".repeat(10_000), 5), (Err(NumbersError::NotJson), 5));
        assert_eq!(read("[1, 2, 3]", 2), (Err(NumbersError::TooMany), 2));
        assert_eq!(read("[1, 2]", 2).1, 0);
    }
}
