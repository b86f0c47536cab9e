//! Globs over host names: `*`, `?` and `[a-z]`, `[!a-z]`.

/// A glob over names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    text: Box<str>,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Exactly(u8),
    One,
    Many,
    Class { negated: bool, ranges: Vec<(u8, u8)> },
}

impl Glob {
    /// Returns the glob `text` is, or the byte offset of what is wrong and what it is.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let bytes = text.as_bytes();
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            pieces.push(match byte {
                b'*' => Piece::Many,
                b'?' => Piece::One,
                b'[' => {
                    let end =
                        bytes[at..].iter().position(|b| *b == b']').ok_or((at - 1, "`[` is not closed"))?
                            + at;
                    let class =
                        class(&bytes[at..end]).ok_or((at - 1, "`[…]` holds no characters or a bad range"))?;
                    at = end + 1;
                    class
                }
                byte if is_name_byte(byte) => Piece::Exactly(byte),
                _ => return Err((at - 1, "a character that no host name has")),
            });
        }
        Ok(Self { text: text.into(), pieces })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `name` matches. Takes at most pieces × bytes steps.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let name = name.as_bytes();
        let (mut piece, mut at) = (0, 0);
        // Where to go on if what follows the last `*` does not fit: that `*` takes one byte more.
        let mut star: Option<(usize, usize)> = None;
        loop {
            let fits = match (self.pieces.get(piece), name.get(at)) {
                (None, None) => return true,
                (Some(Piece::Many), _) => {
                    star = Some((piece, at));
                    piece += 1;
                    continue;
                }
                (Some(Piece::One), Some(_)) => true,
                (Some(Piece::Exactly(wanted)), Some(byte)) => wanted == byte,
                (Some(Piece::Class { negated, ranges }), Some(byte)) => {
                    ranges.iter().any(|(low, high)| (low..=high).contains(&byte)) != *negated
                }
                (None, Some(_)) | (Some(Piece::One | Piece::Exactly(_) | Piece::Class { .. }), None) => false,
            };
            if fits {
                piece += 1;
                at += 1;
            } else if let Some((many, from)) = star
                && from < name.len()
            {
                star = Some((many, from + 1));
                piece = many + 1;
                at = from + 1;
            } else {
                return false;
            }
        }
    }
}

pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

fn class(mut bytes: &[u8]) -> Option<Piece> {
    let negated = matches!(bytes.first(), Some(b'!' | b'^'));
    if negated {
        bytes = &bytes[1..];
    }
    let mut ranges = Vec::new();
    while let Some((&low, rest)) = bytes.split_first() {
        let (high, rest) = match rest {
            [b'-', high, rest @ ..] => (*high, rest),
            rest => (low, rest),
        };
        if low > high || !is_name_byte(low) || !is_name_byte(high) {
            return None;
        }
        ranges.push((low, high));
        bytes = rest;
    }
    (!ranges.is_empty()).then_some(Piece::Class { negated, ranges })
}
