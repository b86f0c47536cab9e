//! The codes that a refused request is answered with.

use serde::{Deserialize, Serialize};

use crate::token::{Refusal, RefusalCode};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $status:literal,)*) => {
        /// Why a request is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum WireCode {
            $($(#[$doc])* $name,)*
        }

        impl WireCode {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the code.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Returns the status of the answer; 0 for what only clients say.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Returns the code that `text` names.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == text)
            }
        }
    };
}

codes! {
    /// Unknown endpoint, bad path or query.
    E100 400,
    /// `/spec` without an identity.
    E101 400,
    /// The method; the answer names those that are allowed.
    E102 405,
    /// Too large.
    E103 413,
    /// Too slow.
    E104 408,
    /// Too often; the answer says when to come again.
    E105 429,
    /// There is no such spec, node, job, repository or file.
    E200 404,
    /// There is no such posture.
    E201 404,
    /// There is no such SSH key.
    E202 404,
    /// The token is missing or malformed.
    E300 400,
    /// The token's signature, key or identity.
    E301 401,
    /// The token is expired or not yet valid.
    E302 401,
    /// The token is revoked.
    E303 401,
    /// The token is not for this.
    E304 403,
    /// The spec or the body is invalid.
    E400 422,
    /// It conflicts with what is there.
    E401 409,
    /// It cannot be answered safely.
    E500 500,
    /// The client cannot reach or trust the server. Never sent.
    E501 0,
}

impl From<RefusalCode> for WireCode {
    fn from(code: RefusalCode) -> Self {
        match code {
            RefusalCode::E200 => Self::E200,
            RefusalCode::E201 => Self::E201,
            RefusalCode::E202 => Self::E202,
            RefusalCode::E300 => Self::E300,
            RefusalCode::E301 => Self::E301,
            RefusalCode::E302 => Self::E302,
            RefusalCode::E303 => Self::E303,
            RefusalCode::E304 => Self::E304,
            RefusalCode::E400 => Self::E400,
            RefusalCode::E500 => Self::E500,
        }
    }
}

/// Why a request is refused: a code, and what a person can do with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct WireError {
    /// Which code.
    pub code: WireCode,
    /// Why.
    pub message: String,
}

impl WireError {
    /// Returns the refusal with this code and message.
    pub fn new(code: WireCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for WireError {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code.into(), message: refusal.message }
    }
}

/// The body of an answer that refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is refused and why.
    pub error: WireError,
}

impl ErrorBody {
    /// Returns the error in the body of an answer, if it is one.
    pub fn parse(body: &[u8]) -> Option<WireError> {
        serde_json::from_slice::<Self>(body).ok().map(|body| body.error)
    }
}
