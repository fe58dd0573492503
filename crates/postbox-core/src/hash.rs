//! A quick hash for keys that are random already, such as row ids: a relay looks each of them up several times.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by row id. What it holds is bounded by what is in flight, so that keys which somebody chose to collide cost little.
pub type RowMap<K, V> = HashMap<K, V, BuildHasherDefault<RowHasher>>;

/// Multiplies and folds, eight bytes at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowHasher(u64);

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of some bytes.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    let mut hasher = RowHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

impl Hasher for RowHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Both halves of the product: the upper one alone knows of all bits, the lower one alone of none above.
        let product = u128::from(self.0.rotate_left(23) ^ word) * u128::from(ODD);
        #[allow(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
        {
            self.0 = (product as u64) ^ ((product >> 64) as u64);
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // Once more: what came last has not been everywhere yet.
        let mut mixed = *self;
        mixed.write_u64(0);
        mixed.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher as _, BuildHasherDefault};

    use super::{RowHasher, of};

    #[test]
    fn neighbours_are_spread() {
        let hash = BuildHasherDefault::<RowHasher>::default();
        let ids = (0..10_000_u128).map(uuid::Uuid::from_u128);
        let places: HashSet<u64> = ids.map(|id| hash.hash_one(id) % 4096).collect();
        assert!(places.len() > 3_500, "{}", places.len());
    }

    #[test]
    fn tokens_are_told_apart() {
        let tokens = (0..1000).map(|epoch| format!("own/{epoch}"));
        assert_eq!(tokens.map(|token| of(token.as_bytes())).collect::<HashSet<_>>().len(), 1000);
    }
}
