//! Numbers in byte slices, in either order, none where the slice is too short.

/// How the bytes of a number are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    /// The least significant first.
    Little,
    /// The most significant first.
    Big,
}

impl ByteOrder {
    /// Returns the 16-bit number at `at`.
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let number = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(number),
            Self::Big => u16::from_be_bytes(number),
        })
    }

    /// Returns the 32-bit number at `at`.
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let number = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(number),
            Self::Big => u32::from_be_bytes(number),
        })
    }

    /// Returns the 64-bit number at `at`.
    pub(crate) fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let number = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(number),
            Self::Big => u64::from_be_bytes(number),
        })
    }
}
