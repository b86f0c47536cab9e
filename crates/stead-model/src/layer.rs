//! Layer files and the texts whose references are expanded.

use crate::diagnostic::Span;

/// A value with references, as pieces in written order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Vec<Piece>);

/// One piece of a [`Text`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is.
    Literal(String),
    /// The value of a name.
    Reference {
        /// Which.
        name: String,
        /// What stands for it while it is unset or empty.
        default: Option<Text>,
        /// Where it is.
        span: Span,
    },
}
