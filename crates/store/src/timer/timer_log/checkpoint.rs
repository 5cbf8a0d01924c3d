//! The timer log's checkpoint. It is replaced as a whole, so it is always either the old one or the new one.
//!
//! ```text
//!  0 | magic | queue offset | done: wake, physical offset | next serial | epoch | count of files |
//! 56 | minute, serial, entries | … | crc: u32 |
//! ```
//! All numbers but the crc have 8 bytes.

use std::path::Path;

use crate::disk::Disk;
use crate::error::StoreError;
use crate::timer::timer_log::entry::TimerPosition;

const NAME: &str = "checkpoint";
const NEW_NAME: &str = "checkpoint.new";
const MAGIC: i64 = i64::from_be_bytes(*b"MetaQtm1");
const LONGS: usize = 7;
const LONGS_PER_FILE: usize = 3;
const CRC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileLength {
    pub(crate) minute: i64,
    pub(crate) serial: u64,
    pub(crate) entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) queue_offset: i64,
    pub(crate) done: TimerPosition,
    pub(crate) next_serial: u64,
    pub(crate) epoch: u64,
    pub(crate) files: Vec<FileLength>,
}

impl Checkpoint {
    pub(crate) fn is_file(name: &str) -> bool {
        name == NAME
    }

    /// None if it is missing or damaged.
    pub(crate) fn load(disk: &dyn Disk, directory: &Path) -> Result<Option<Self>, StoreError> {
        let path = directory.join(NAME);
        if !disk.exists(&path) {
            return Ok(None);
        }
        let fail = |source| StoreError::io(&path, source);
        let file = disk.open(&path).map_err(fail)?;
        let mut bytes = vec![0; disk.len(&file).map_err(fail)? as usize];
        let read = disk.read_at(&file, &mut bytes, 0).map_err(fail)?;
        Ok(Self::decode(&bytes[..read]))
    }

    pub(crate) fn save(&self, disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
        let (path, new_path) = (directory.join(NAME), directory.join(NEW_NAME));
        let fail = |source| StoreError::io(&new_path, source);
        let bytes = self.encode();
        let file = disk.create(&new_path).map_err(fail)?;
        disk.set_len(&file, bytes.len() as u64).map_err(fail)?;
        disk.write_at(&file, &bytes, 0).map_err(fail)?;
        disk.sync_data(&file).map_err(fail)?;
        disk.rename(&new_path, &path).map_err(fail)?;
        disk.sync_directory(directory).map_err(fail)
    }

    fn encode(&self) -> Vec<u8> {
        let (done, serial, epoch) = (self.done, self.next_serial as i64, self.epoch as i64);
        let count = self.files.len() as i64;
        let head = [MAGIC, self.queue_offset, done.wake_ms, done.physical_offset, serial, epoch, count];
        let files = self.files.iter().flat_map(|file| [file.minute, file.serial as i64, file.entries as i64]);
        let mut bytes: Vec<u8> = head.into_iter().chain(files).flat_map(i64::to_be_bytes).collect();
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, crc) = bytes.split_at_checked(bytes.len().checked_sub(CRC_BYTES)?)?;
        if crc != crc32fast::hash(content).to_be_bytes() {
            return None;
        }
        let longs = content.chunks_exact(8).filter_map(|long| Some(i64::from_be_bytes(*long.first_chunk()?)));
        let longs: Vec<i64> = longs.collect();
        let (head, files) = longs.split_at_checked(LONGS)?;
        let [magic, queue_offset, wake_ms, physical_offset, next_serial, epoch, count] = *head else {
            return None;
        };
        if magic != MAGIC || files.len() != usize::try_from(count).ok()?.checked_mul(LONGS_PER_FILE)? {
            return None;
        }
        let files = files.chunks_exact(LONGS_PER_FILE).map(|file| FileLength {
            minute: file[0],
            serial: file[1] as u64,
            entries: file[2] as u64,
        });
        let done = TimerPosition { wake_ms, physical_offset };
        let (next_serial, epoch) = (next_serial as u64, epoch as u64);
        Some(Self { queue_offset, done, next_serial, epoch, files: files.collect() })
    }
}
