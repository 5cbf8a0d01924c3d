//! The checkpoint file: how far the store was safe when it was last written.
//!
//! ```text
//!   0 | store time synced in the log | … in the queues | … in the index | flushed offset | confirmed offset |  Apache's
//!  48 | magic | lower bound | last record | synced end | index synced end | queue count | queue files | flushed mark | boot id (16) | crc |
//! ```
//! The first version of the file has no flushed mark. All numbers have 8 bytes, the file has 4 KiB. Apache's store reads the first five and leaves the rest alone. Our crc
//! covers both parts: if Apache's store wrote the file later, the crc fails and our bound, which does not cover what
//! Apache did, is not trusted.

use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

const FILE_BYTES: u64 = 4_096;
const OUR_PART: usize = 48;
const MAGIC_V1: i64 = i64::from_be_bytes(*b"MetaQst1");
const MAGIC: i64 = i64::from_be_bytes(*b"MetaQst2");
const LONGS_V1: usize = 7;
const LONGS: usize = 8;
const BOOT_ID_BYTES: usize = 16;
const USED_BYTES: usize = crc_at(LONGS) + 4;

/// The position of the crc in a file with this many numbers in our part.
const fn crc_at(longs: usize) -> usize {
    OUR_PART + longs * 8 + BOOT_ID_BYTES
}

/// The part of the file that Apache's store uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) log_ms: i64,
    pub(crate) queues_ms: i64,
    pub(crate) index_ms: i64,
    pub(crate) flushed_offset: i64,
    pub(crate) confirmed_offset: i64,
}

/// Our part of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Every record below this physical offset is synced, and so is its consume-queue entry.
    pub(crate) lower_bound: i64,
    /// The start of the record that ends at `lower_bound`; −1 for none. Proves that the log is still the same.
    pub(crate) last_record: i64,
    /// The log was synced up to here: a gap below it is damage, not a torn tail.
    pub(crate) synced_end: i64,
    /// Index files were synced up to here, which matters only after a restart of the machine.
    pub(crate) index_synced_end: i64,
    /// At least this many queues have files.
    pub(crate) queue_count: i64,
    /// A digest of the queues' files at an orderly stop, otherwise 0.
    pub(crate) queue_files: i64,
    /// The log was synced up to here once. If it ends below, it has lost something, and the mark stays until the owner
    /// of the store has accepted that.
    pub(crate) flushed_mark: i64,
    pub(crate) boot_id: [u8; 16],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) times: Times,
    /// None if it is missing or damaged, or if Apache's store wrote the file last.
    pub(crate) bound: Option<Bound>,
}

pub(crate) struct Checkpoint {
    path: PathBuf,
    file: DiskFile,
}

impl Checkpoint {
    /// Opens and reads the file; a new or short one has no content.
    pub(crate) fn open(disk: &dyn Disk, store_directory: &Path) -> Result<(Self, Saved), StoreError> {
        let path = store_directory.join("checkpoint");
        let fail = |source| StoreError::io(&path, source);
        let file = disk.create(&path).map_err(fail)?;
        let len = disk.len(&file).map_err(fail)?;
        let mut bytes = [0; USED_BYTES];
        disk.read_at(&file, &mut bytes, 0).map_err(fail)?;
        if len < FILE_BYTES {
            disk.set_len(&file, FILE_BYTES).map_err(fail)?;
        }
        Ok((Self { path, file }, decode(&bytes)))
    }

    /// Writes and syncs the file at once; a torn write fails the crc.
    pub(crate) fn save(&self, disk: &dyn Disk, times: &Times, bound: &Bound) -> Result<(), StoreError> {
        let fail = |source| StoreError::io(&self.path, source);
        disk.write_at(&self.file, &encode(times, bound), 0).map_err(fail)?;
        disk.sync_data(&self.file).map_err(fail)
    }
}

fn encode(times: &Times, bound: &Bound) -> [u8; USED_BYTES] {
    let mut bytes = [0; USED_BYTES];
    let apache =
        [times.log_ms, times.queues_ms, times.index_ms, times.flushed_offset, times.confirmed_offset];
    let ours = [
        MAGIC,
        bound.lower_bound,
        bound.last_record,
        bound.synced_end,
        bound.index_synced_end,
        bound.queue_count,
        bound.queue_files,
        bound.flushed_mark,
    ];
    for (place, value) in bytes.chunks_exact_mut(8).zip(apache) {
        place.copy_from_slice(&value.to_be_bytes());
    }
    for (place, value) in bytes[OUR_PART..].chunks_exact_mut(8).zip(ours) {
        place.copy_from_slice(&value.to_be_bytes());
    }
    let crc_at = crc_at(LONGS);
    bytes[crc_at - BOOT_ID_BYTES..crc_at].copy_from_slice(&bound.boot_id);
    let crc = crc32fast::hash(&bytes[..crc_at]);
    bytes[crc_at..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; USED_BYTES]) -> Saved {
    let long = |at: usize| bytes[at..].first_chunk().copied().map_or(0, i64::from_be_bytes);
    let times = Times {
        log_ms: long(0),
        queues_ms: long(8),
        index_ms: long(16),
        flushed_offset: long(24),
        confirmed_offset: long(32),
    };
    let longs = match long(OUR_PART) {
        MAGIC => LONGS,
        MAGIC_V1 => LONGS_V1,
        _ => return Saved { times, bound: None },
    };
    let crc_at = crc_at(longs);
    let is_sound = bytes[crc_at..][..4] == crc32fast::hash(&bytes[..crc_at]).to_be_bytes();
    let synced_end = long(OUR_PART + 24);
    let bound = is_sound.then(|| Bound {
        lower_bound: long(OUR_PART + 8),
        last_record: long(OUR_PART + 16),
        synced_end,
        index_synced_end: long(OUR_PART + 32),
        queue_count: long(OUR_PART + 40),
        queue_files: long(OUR_PART + 48),
        flushed_mark: if longs == LONGS { long(OUR_PART + 56) } else { synced_end },
        boot_id: bytes[crc_at - BOOT_ID_BYTES..].first_chunk().copied().unwrap_or_default(),
    });
    Saved { times, bound }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Times, Bound) {
        let times = Times { log_ms: 1, queues_ms: 2, index_ms: 3, flushed_offset: 4, confirmed_offset: 5 };
        let bound = Bound {
            lower_bound: 600,
            last_record: 500,
            synced_end: 700,
            index_synced_end: 400,
            queue_count: 9,
            queue_files: 8,
            flushed_mark: 900,
            boot_id: [7; 16],
        };
        (times, bound)
    }

    #[test]
    fn both_parts_come_back() {
        let (times, bound) = sample();
        assert_eq!(decode(&encode(&times, &bound)), Saved { times, bound: Some(bound) });
    }

    #[test]
    fn a_file_of_the_first_version_is_read() {
        let (times, bound) = sample();
        let mut bytes = encode(&times, &bound);
        bytes[OUR_PART..][..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        let crc_at = crc_at(LONGS_V1);
        bytes[crc_at - BOOT_ID_BYTES..crc_at].copy_from_slice(&bound.boot_id);
        let crc = crc32fast::hash(&bytes[..crc_at]);
        bytes[crc_at..][..4].copy_from_slice(&crc.to_be_bytes());
        let wanted = Bound { flushed_mark: bound.synced_end, ..bound };
        assert_eq!(decode(&bytes), Saved { times, bound: Some(wanted) });
    }

    #[test]
    fn any_changed_byte_voids_our_part() {
        let (times, bound) = sample();
        let good = encode(&times, &bound);
        // Apache's five numbers are covered too: it changes them when it writes to the store.
        for at in (0..40).chain(OUR_PART..USED_BYTES) {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert_eq!(decode(&bytes).bound, None, "byte {at}");
        }
    }
}
