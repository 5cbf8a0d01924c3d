//! The mark: how far deliveries came since the last checkpoint. It is written often and never synced.
//!
//! ```text
//! 0 | magic | boot id (16) | epoch | done: wake, physical offset | queue offset | crc: u32 |
//! ```
//! A kill leaves the mark as it was written last. A restart of the machine may leave it ahead of the deliveries that it
//! speaks of, so it counts only under the same boot id.

use std::path::Path;

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::timer::timer_log::entry::TimerPosition;

const NAME: &str = "mark";
const MAGIC: i64 = i64::from_be_bytes(*b"MetaQtk1");
const BYTES: usize = 60;
const CRC_AT: usize = BYTES - 4;

/// The content of the mark file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Distinguishes marks that cannot be compared because the clock was set back in between.
    pub(crate) epoch: u64,
    pub(crate) done: TimerPosition,
    /// Entries of records before this queue offset are done if their position is at or before `done`.
    pub(crate) queue_offset: i64,
}

pub(crate) struct MarkFile {
    file: DiskFile,
    boot_id: [u8; 16],
}

impl MarkFile {
    pub(crate) fn is_file(name: &str) -> bool {
        name == NAME
    }

    pub(crate) fn open(disk: &dyn Disk, directory: &Path) -> Result<(Self, Option<Mark>), StoreError> {
        let path = directory.join(NAME);
        let fail = |source| StoreError::io(&path, source);
        let file = disk.create(&path).map_err(fail)?;
        let mut bytes = [0; BYTES];
        let read = disk.read_at(&file, &mut bytes, 0).map_err(fail)?;
        let mark_file = Self { file, boot_id: disk.boot_id() };
        let mark = if read == BYTES { mark_file.decode(&bytes) } else { None };
        Ok((mark_file, mark))
    }

    pub(crate) fn write(&self, disk: &dyn Disk, mark: &Mark) -> Result<(), StoreError> {
        let write = disk.write_at(&self.file, &self.encode(mark), 0);
        write.map_err(|source| StoreError::io(self.file.path(), source))
    }

    fn encode(&self, mark: &Mark) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.boot_id);
        let longs = [mark.epoch as i64, mark.done.wake_ms, mark.done.physical_offset, mark.queue_offset];
        for (place, long) in bytes[24..CRC_AT].chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_be_bytes());
        }
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn decode(&self, bytes: &[u8; BYTES]) -> Option<Mark> {
        let long = |at: usize| Some(i64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let is_sound = bytes[CRC_AT..] == crc32fast::hash(&bytes[..CRC_AT]).to_be_bytes();
        if !is_sound || long(0)? != MAGIC || bytes[8..24] != self.boot_id {
            return None;
        }
        let done = TimerPosition { wake_ms: long(32)?, physical_offset: long(40)? };
        Some(Mark { epoch: long(24)? as u64, done, queue_offset: long(48)? })
    }
}
