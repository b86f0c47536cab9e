//! Text that need not be UTF-8, such as a path or an argument.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base64;

/// Bytes that are text most of the time: a JSON string, or `{"b64": …}` where they are not UTF-8.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteText(pub Vec<u8>);

impl ByteText {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for ByteText {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for ByteText {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for ByteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    b64: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Text(String),
    Encoded(Encoded),
}

impl Serialize for ByteText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded { b64: base64::encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ByteText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(Self(text.into_bytes())),
            Either::Encoded(Encoded { b64 }) => {
                base64::decode(&b64).map(Self).ok_or_else(|| serde::de::Error::custom("`b64` is not base64"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_text_is_base64() {
        assert_eq!(serde_json::to_string(&ByteText::from("a")).unwrap(), r#""a""#);
        assert_eq!(serde_json::to_string(&ByteText(vec![0xff, 0])).unwrap(), r#"{"b64":"/wA="}"#);
        assert!(serde_json::from_str::<ByteText>(r#"{"b64":"?"}"#).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>) {
            let text = serde_json::to_string(&ByteText(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<ByteText>(&text).unwrap().0, bytes);
        }
    }
}
