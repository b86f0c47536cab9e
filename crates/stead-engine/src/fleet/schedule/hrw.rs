//! Highest random weight: a fixed order of workers for each instance, with no order of instances on any worker.

use sha2::{Digest as _, Sha256};

/// Returns the first 8 bytes of the hash of `text`.
pub(super) fn hash(text: &str) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(b"hrw/v1\n");
    hasher.update(text.as_bytes());
    let digest = hasher.finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the weight of a pair of hashes.
pub(super) fn mix(key: u64, worker: u64) -> u64 {
    let mut z = key ^ worker;
    z ^= z >> 30;
    z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns the weight of `worker` for the instance `key`.
pub fn hrw(key: &str, worker: &str) -> u64 {
    mix(hash(key), hash(worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 7: the vectors.
    #[test]
    fn the_vectors_have_their_weights() {
        let weights = ["w1", "w2", "w3"].map(|worker| format!("{:016x}", hrw("web/0", worker)));
        assert_eq!(weights, ["7ddda16b369f7e30", "3a604597e616de58", "c0cf8d720d3feb8a"]);
    }
}
