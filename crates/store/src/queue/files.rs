//! Consume-queue files: opened lazily, a bounded number at a time, plain reads and writes.
//!
//! They are not mapped: ten thousand topics with eight queues each would exceed the kernel's limit of mappings, and a
//! full disk is an error for a write but a SIGBUS for a mapping. A file has its full length from the start, as Apache's
//! store expects, but takes blocks only where entries were written.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;

pub(crate) const ENTRY_BYTES: u64 = 20;
/// Well below the usual limit of 1,024 open files, because most of them are needed for sockets.
const OPEN_FILES_MAX: usize = 256;
/// Past this many unsynced files one sync of the file system is cheaper than one each.
const UNSYNCED_FILES_MAX: usize = 64;

/// One entry of a consume queue: `| physical offset: i64 | record size: i32 | tag code: i64 |`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) physical_offset: i64,
    pub(crate) size: i32,
    pub(crate) tag_code: i64,
}

impl Entry {
    /// Takes the place of an entry that was lost or never existed; Apache writes the same before a queue's first entry.
    pub(crate) const HOLE: Self = Self { physical_offset: 0, size: i32::MAX, tag_code: 0 };

    /// Whether the entry points at no record: a hole, or zeros that were never written.
    pub(crate) fn is_void(&self) -> bool {
        self.size <= 0 || self.size == i32::MAX
    }

    pub(crate) fn is_unwritten(&self) -> bool {
        self.size == 0 && self.physical_offset == 0
    }

    pub(crate) fn end_offset(&self) -> i64 {
        self.physical_offset.saturating_add(i64::from(self.size))
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tag_code.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> Self {
        let value = u128::from_be_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8],
            bytes[9], bytes[10], bytes[11], 0, 0, 0, 0,
        ]);
        Self {
            physical_offset: (value >> 64) as i64,
            size: (value >> 32) as i32,
            tag_code: i64::from_be_bytes([
                bytes[12], bytes[13], bytes[14], bytes[15], bytes[16], bytes[17], bytes[18], bytes[19],
            ]),
        }
    }
}

/// Identifies one file: the queue's serial and the queue offset of the file's first entry.
pub(crate) type FileKey = (u64, i64);

pub(crate) struct QueueDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) root: PathBuf,
    /// Entries of a new file.
    pub(crate) file_entries: i64,
    /// How many queues have a directory.
    pub(crate) directory_count: AtomicI64,
    open_files: Mutex<OpenFiles>,
    unsynced: Mutex<Unsynced>,
}

#[derive(Default)]
struct OpenFiles {
    files: HashMap<FileKey, (Arc<DiskFile>, u64), foldhash::fast::RandomState>,
    uses: u64,
}

#[derive(Default)]
struct Unsynced {
    files: HashMap<FileKey, Arc<DiskFile>, foldhash::fast::RandomState>,
    directories: Vec<PathBuf>,
    /// Too many files to list: everything has to be synced.
    all: bool,
}

impl QueueDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>, store_directory: &Path, file_entries: u64) -> Self {
        Self {
            disk,
            root: store_directory.join("consumequeue"),
            file_entries: file_entries as i64,
            directory_count: AtomicI64::new(0),
            open_files: Mutex::default(),
            unsynced: Mutex::default(),
        }
    }

    pub(crate) fn directory(&self, topic: &str, queue_id: i32) -> PathBuf {
        self.root.join(topic).join(queue_id.to_string())
    }

    pub(crate) fn file(
        &self,
        key: FileKey,
        directory: impl FnOnce() -> PathBuf,
    ) -> io::Result<Arc<DiskFile>> {
        {
            let mut open_files = self.open_files.lock();
            open_files.uses += 1;
            let uses = open_files.uses;
            if let Some((file, last_use)) = open_files.files.get_mut(&key) {
                *last_use = uses;
                return Ok(Arc::clone(file));
            }
        }
        let file = Arc::new(self.disk.open(&directory().join(file_name(key.1)))?);
        self.remember(key, &file);
        Ok(file)
    }

    /// Creates a file of full length, without blocks.
    pub(crate) fn make_file(&self, key: FileKey, directory: &Path) -> io::Result<Arc<DiskFile>> {
        self.disk.create_directory(directory)?;
        let file = Arc::new(self.disk.create(&directory.join(file_name(key.1)))?);
        let len = self.file_entries as u64 * ENTRY_BYTES;
        if self.disk.len(&file)? < len {
            self.disk.set_len(&file, len)?;
        }
        self.remember(key, &file);
        self.unsynced.lock().add_directory(directory);
        Ok(file)
    }

    fn remember(&self, key: FileKey, file: &Arc<DiskFile>) {
        let mut open_files = self.open_files.lock();
        let uses = open_files.uses;
        open_files.files.insert(key, (Arc::clone(file), uses));
        if open_files.files.len() > OPEN_FILES_MAX {
            let oldest =
                open_files.files.iter().min_by_key(|(_, (_, last_use))| *last_use).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                open_files.files.remove(&oldest);
            }
        }
    }

    pub(crate) fn forget(&self, key: FileKey) {
        self.open_files.lock().files.remove(&key);
        self.unsynced.lock().files.remove(&key);
    }

    pub(crate) fn write(&self, key: FileKey, file: &Arc<DiskFile>, data: &[u8], from: u64) -> io::Result<()> {
        self.disk.write_at(file, data, from)?;
        let mut unsynced = self.unsynced.lock();
        if !unsynced.all {
            unsynced.files.insert(key, Arc::clone(file));
            unsynced.limit();
        }
        Ok(())
    }

    /// Syncs everything written so far.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let unsynced = std::mem::take(&mut *self.unsynced.lock());
        if unsynced.all {
            let synced = self.disk.sync_file_system(&self.root);
            return synced.map_err(|source| StoreError::io(&self.root, source));
        }
        for file in unsynced.files.values() {
            self.disk.sync_data(file).map_err(|source| StoreError::io(file.path(), source))?;
        }
        for directory in &unsynced.directories {
            // The queue's directory, its topic's and the root: each may be new.
            for level in directory.ancestors().take(3) {
                match self.disk.sync_directory(level) {
                    // Its topic was deleted meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    synced => synced.map_err(|source| StoreError::io(level, source))?,
                }
            }
        }
        Ok(())
    }
}

impl Unsynced {
    fn add_directory(&mut self, directory: &Path) {
        if !self.all {
            self.directories.push(directory.to_owned());
            self.limit();
        }
    }

    fn limit(&mut self) {
        if self.files.len() > UNSYNCED_FILES_MAX || self.directories.len() > UNSYNCED_FILES_MAX {
            *self = Self { all: true, ..Self::default() };
        }
    }
}

pub(crate) fn file_name(first_entry: i64) -> String {
    format!("{:020}", first_entry * ENTRY_BYTES as i64)
}

/// The queue offset of a file's first entry, from its name; None if the name is not ours.
pub(crate) fn parse_file_name(name: &str) -> Option<i64> {
    if name.len() != 20 || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bytes: i64 = name.parse().ok()?;
    (bytes % ENTRY_BYTES as i64 == 0).then_some(bytes / ENTRY_BYTES as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn entries_have_their_layout() {
        let entry = Entry { physical_offset: 0x0102_0304_0506_0708, size: 0x090A_0B0C, tag_code: -2 };
        let bytes = entry.encode();
        assert_eq!(bytes[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(bytes[12..], [255, 255, 255, 255, 255, 255, 255, 254]);
        assert_eq!(Entry::decode(&bytes), entry);
    }

    #[test]
    fn names_are_byte_offsets() {
        assert_eq!(file_name(300_000), "00000000000006000000");
        assert_eq!(parse_file_name("00000000000006000000"), Some(300_000));
        assert_eq!(parse_file_name("00000000000000000010"), None);
        assert_eq!(parse_file_name("6000000"), None);
        assert_eq!(parse_file_name("99999999999999999999"), None);
    }

    #[test]
    fn few_files_are_open_at_a_time() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let disk = QueueDisk::new(Arc::new(SystemDisk), directory.path(), 10);
        for queue in 0..OPEN_FILES_MAX as i32 + 50 {
            let file = disk.make_file((queue as u64, 0), &disk.directory("t", queue))?;
            disk.write((queue as u64, 0), &file, b"x", 0)?;
        }
        assert_eq!(disk.open_files.lock().files.len(), OPEN_FILES_MAX);
        assert!(disk.unsynced.lock().all, "too many to sync one by one");
        assert!(disk.sync().is_ok());
        assert!(!disk.unsynced.lock().all);
        // Opened again when it is asked for.
        assert!(disk.file((0, 0), || disk.directory("t", 0)).is_ok());
        Ok(())
    }
}
