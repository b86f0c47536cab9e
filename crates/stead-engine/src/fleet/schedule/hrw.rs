//! Highest random weight: a fixed order of workers for each instance, with no order of instances on any worker.

use multiversion::multiversion;
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
    weight(draft(fold(key), fold(worker)))
}

/// The first step of mixing, which both sides can take alone: what is folded and then put together is the same as what is
/// put together and then folded.
pub(super) fn fold(hash: u64) -> u64 {
    hash ^ hash >> 30
}

/// All steps but the last of mixing two folded hashes. Its upper bits ([`UPPER`]) are those of the weight.
#[inline(always)]
pub(super) fn draft(key: u64, worker: u64) -> u64 {
    let z = (key ^ worker).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// The bits that the last step leaves as they are.
pub(super) const UPPER: u64 = u64::MAX << 33;

/// The last step.
pub(super) fn weight(draft: u64) -> u64 {
    draft ^ draft >> 31
}

/// How many workers are weighed at once.
pub(super) const BLOCK: usize = 64;

/// Returns how many blocks of `workers` come before the first one with a draft of at least `floor`. All of them are folded.
///
/// A weight is two multiplications of 64 bits. Where the processor does eight of them at once this is three times as fast
/// as one after the other; where it does not, [`is_wide`] says so.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl"))]
pub(super) fn blocks_below(key: u64, workers: &[u64], floor: u64) -> usize {
    let most = |block: &[u64]| block.iter().fold(0, |most: u64, worker| most.max(draft(key, *worker)));
    workers.chunks(BLOCK).take_while(|block| most(block) < floor).count()
}

/// Whether [`blocks_below`] is faster than one worker after the other here.
pub(super) fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
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

    /// Section 7: mixing in steps is mixing, and the upper bits of a draft are those of its weight.
    #[test]
    fn a_draft_is_nearly_a_weight() {
        let mut key = 1_u64;
        for worker in 0..10_000_u64 {
            key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(worker);
            let mut z = key ^ hash(&worker.to_string());
            z ^= z >> 30;
            z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z ^= z >> 27;
            z = z.wrapping_mul(0x94d0_49bb_1331_11eb);
            assert_eq!(mix(key, hash(&worker.to_string())), z ^ z >> 31);
            assert_eq!(draft(fold(key), fold(hash(&worker.to_string()))) & UPPER, (z ^ z >> 31) & UPPER);
        }
    }

    /// Section 7: blocks are passed over if nothing in them weighs enough, whatever this processor does at once.
    #[test]
    fn blocks_without_a_heavy_worker_are_passed_over() {
        let workers: Vec<u64> = (0..1000_u64).map(|worker| fold(hash(&worker.to_string()))).collect();
        for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 1000] {
            let workers = &workers[..length];
            for text in ["web/0", "web/1", "cache/7"] {
                let key = fold(hash(text));
                let mut drafts: Vec<u64> = workers.iter().map(|worker| draft(key, *worker)).collect();
                assert_eq!(blocks_below(key, workers, 0), 0);
                for floor in drafts.clone() {
                    let first = drafts.iter().position(|draft| *draft >= floor).unwrap();
                    assert_eq!(blocks_below(key, workers, floor), first / BLOCK);
                }
                drafts.sort_unstable();
                let above = drafts.last().map_or(1, |most| most + 1);
                assert_eq!(blocks_below(key, workers, above), length.div_ceil(BLOCK));
            }
        }
    }
}
