//! Reads big-endian integers and finds bytes; every bound is checked.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// A forward reader over a slice. Every read returns `None` if the slice ends too early.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn i8(&mut self) -> Option<i8> {
        self.array().map(i8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    #[inline]
    pub(crate) fn octets<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.array()
    }

    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }
}

/// Sets the high bit of each byte of `word` that is zero. Exact only up to the lowest such byte, which callers use.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// The first position at or after `from` of `a` or `b`. It takes eight bytes per step, because header strings are long.
#[inline(always)]
pub(crate) fn find_either(bytes: &[u8], from: usize, a: u8, b: u8) -> Option<usize> {
    let tail = bytes.get(from..)?;
    let pattern_a = LOW_BITS.wrapping_mul(u64::from(a));
    let pattern_b = LOW_BITS.wrapping_mul(u64::from(b));
    let mut words = tail.chunks_exact(8);
    let mut at = from;
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        let hits = zero_bytes(word ^ pattern_a) | zero_bytes(word ^ pattern_b);
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let position = words.remainder().iter().position(|&byte| byte == a || byte == b)?;
    Some(at + position)
}

/// The first position at or after `from` of `wanted`.
#[inline(always)]
pub(crate) fn find(bytes: &[u8], from: usize, wanted: u8) -> Option<usize> {
    find_either(bytes, from, wanted, wanted)
}

/// The first position of a byte that JSON escapes: a control character, a quote or a backslash.
#[inline(always)]
pub(crate) fn find_unescaped(bytes: &[u8]) -> Option<usize> {
    const SPACES: u64 = LOW_BITS * 0x20;
    const QUOTES: u64 = LOW_BITS * b'"' as u64;
    const BACKSLASHES: u64 = LOW_BITS * b'\\' as u64;
    let mut words = bytes.chunks_exact(8);
    let mut at = 0;
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        let controls = word.wrapping_sub(SPACES) & !word & HIGH_BITS;
        let hits = controls | zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let is_special = |&byte: &u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    words.remainder().iter().position(is_special).map(|position| at + position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reader_never_runs_past_the_end() {
        let mut reader = Reader::new(&[0, 1, 2]);
        assert_eq!(reader.i32(), None);
        assert_eq!(reader.i16(), Some(1));
        assert_eq!(reader.take(2), None);
        assert_eq!(reader.u8(), Some(2));
        assert!(reader.is_empty());
        assert_eq!(reader.take(0), Some(&[][..]));
    }

    proptest! {
        #[test]
        fn finding_agrees_with_the_plain_loop(
            bytes in prop::collection::vec(0u8..6, 0..70), from in 0usize..80, a in 0u8..6, b in 0u8..6,
        ) {
            let plain = (from..bytes.len()).find(|&at| bytes[at] == a || bytes[at] == b);
            prop_assert_eq!(find_either(&bytes, from, a, b), plain);
        }

        #[test]
        fn finding_agrees_on_any_byte(bytes in prop::collection::vec(any::<u8>(), 0..70), wanted: u8) {
            prop_assert_eq!(find(&bytes, 0, wanted), bytes.iter().position(|&byte| byte == wanted));
            let special = bytes.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
            prop_assert_eq!(find_unescaped(&bytes), special);
        }
    }
}
