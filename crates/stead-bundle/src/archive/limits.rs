//! What an archive may make us hold or do. Bundles are far below; archives made to hurt are not.

use super::ArchiveError;

/// How much is read or written at once.
pub(super) const PIECE: usize = 128 << 10;
/// The names of all entries together: about a million entries.
pub(super) const NAMES: usize = 128 << 20;
/// A longer name is none.
pub(super) const NAME: u64 = 32 << 10;
/// Windows larger than this (as an exponent) are refused: 128 MiB, the most `zstd` writes unless told otherwise.
pub(super) const WINDOW_LOG: u32 = 27;
/// Up to here anything may come out of an archive, however small it is: long runs of one byte are common in logs.
const ALWAYS_ALLOWED: u64 = 64 << 30;
/// Beyond that, so many times the archive's length.
const RATIO: u64 = 1_000;

/// Counts what comes out of an archive of a known length.
#[derive(Debug)]
pub(super) struct Inflation {
    most: u64,
    sum: u64,
}

impl Inflation {
    pub(super) fn of(archive_len: u64) -> Self {
        Self { most: archive_len.saturating_mul(RATIO).max(ALWAYS_ALLOWED), sum: 0 }
    }

    /// Counts an entry of `bytes` bytes before any of them is read.
    pub(super) fn count(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        self.sum = self.sum.saturating_add(bytes);
        if self.sum <= self.most {
            return Ok(());
        }
        let message =
            format!("its files are longer than {} bytes together: it is made to grow without end", self.most);
        Err(ArchiveError::damaged(message))
    }
}
