//! Checksums of the blocks of an index file, kept in memory.
//!
//! Apache's format has no checksums. These are made when a start has verified the file, and follow each entry that is
//! added. So a query sees at once that bytes which it reads are not those that were written.

use crate::log::mapped::MappedTable;

pub(crate) const BLOCK_BYTES: u64 = 4_096;
const WORD_BYTES: usize = 4;

/// The sum of each block is the sum of its words, each mixed with its place: so it can be corrected word by word.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSums {
    /// Blocks behind them were not written to.
    sums: Vec<u64>,
}

impl BlockSums {
    /// The sums of the blocks up to a position, as their content is now.
    pub(crate) fn of(table: &MappedTable, end: u64) -> Self {
        Self { sums: (0..end.div_ceil(BLOCK_BYTES)).map(|block| sum_of(table, block)).collect() }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Whether the block of a position has the bytes that were written there.
    #[inline]
    pub(crate) fn is_right(&self, table: &MappedTable, position: u64) -> bool {
        let block = position / BLOCK_BYTES;
        self.sums.get(block as usize).is_none_or(|sum| *sum == sum_of(table, block))
    }

    /// Follows a write; to be called before it.
    pub(crate) fn follow(&mut self, table: &MappedTable, position: u64, data: &[u8]) {
        while self.blocks() * BLOCK_BYTES < position + data.len() as u64 {
            self.sums.push(sum_of(table, self.blocks()));
        }
        let old = table.bytes(position, data.len()).unwrap_or_default();
        for (number, (old, new)) in
            old.chunks_exact(WORD_BYTES).zip(data.chunks_exact(WORD_BYTES)).enumerate()
        {
            let at = position + (number * WORD_BYTES) as u64;
            if let Some(sum) = self.sums.get_mut((at / BLOCK_BYTES) as usize) {
                *sum = sum.wrapping_sub(mixed(at, old)).wrapping_add(mixed(at, new));
            }
        }
    }
}

fn sum_of(table: &MappedTable, block: u64) -> u64 {
    let start = block * BLOCK_BYTES;
    let len = BLOCK_BYTES.min(table.len().saturating_sub(start)) as usize;
    let words = table.bytes(start, len).unwrap_or_default().chunks_exact(WORD_BYTES).enumerate();
    words.fold(0, |sum: u64, (number, word)| {
        sum.wrapping_add(mixed(start + (number * WORD_BYTES) as u64, word))
    })
}

#[inline]
fn mixed(position: u64, word: &[u8]) -> u64 {
    let word = word.first_chunk().copied().map_or(0, u32::from_ne_bytes);
    if word == 0 {
        return 0;
    }
    let mixed = ((position / WORD_BYTES as u64) << 32 | u64::from(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn sums_follow_writes_and_find_any_other_change() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let mut table = MappedTable::open(&SystemDisk, &directory.path().join("table"), 20_000)?;
        table.allocate(&SystemDisk, 20_000)?;
        table.write(4_090, &[9; 12]);
        let mut sums = BlockSums::default();
        for (position, data) in [(0, [1; 8]), (4_092, [2; 8]), (12_288, [3; 8]), (4, [4; 8])] {
            sums.follow(&table, position, &data);
            table.write(position, &data);
        }
        assert_eq!(sums.blocks(), 4);
        let are_right = |table: &MappedTable| (0..5).all(|block| sums.is_right(table, block * BLOCK_BYTES));
        assert!(are_right(&table));
        assert_eq!(BlockSums::of(&table, 12_300), sums);
        for position in [0, 3_000, 4_095, 12_290] {
            let [before] = table.read::<1>(position).ok_or("no byte")?;
            table.write(position, &[before ^ 4]);
            assert!(!sums.is_right(&table, position) && !are_right(&table));
            table.write(position, &[before]);
        }
        // Words that changed places.
        table.write(0, &[4, 4, 4, 4, 1, 1, 1, 1]);
        assert!(!sums.is_right(&table, 0));
        Ok(())
    }
}
