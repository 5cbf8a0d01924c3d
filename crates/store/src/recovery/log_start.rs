//! The file `log_start`: where the log begins. Retention writes it before it deletes the first files of the log, so a start can
//! tell files that retention has deleted from files that were lost.
//!
//! ```text
//! | log start: i64 | crc: u32 |
//! ```

use std::path::Path;

use crate::disk::Disk;
use crate::error::StoreError;

const NAME: &str = "log_start";
const BYTES: usize = 12;

/// The start that was written last; None if there is none, or if the file is damaged.
pub(crate) fn read(disk: &dyn Disk, store_directory: &Path) -> Result<Option<i64>, StoreError> {
    let path = store_directory.join(NAME);
    if !disk.exists(&path) {
        return Ok(None);
    }
    let mut bytes = [0; BYTES];
    let read = disk.open(&path).and_then(|file| disk.read_at(&file, &mut bytes, 0));
    read.map_err(|source| StoreError::io(&path, source))?;
    let [start @ .., _, _, _, _] = bytes;
    Ok((encode(i64::from_be_bytes(start)) == bytes).then(|| i64::from_be_bytes(start)))
}

/// Writes and syncs the start.
pub(crate) fn save(disk: &dyn Disk, store_directory: &Path, start: i64) -> Result<(), StoreError> {
    let path = store_directory.join(NAME);
    let is_new = !disk.exists(&path);
    disk.create(&path)
        .and_then(|file| disk.write_at(&file, &encode(start), 0).and_then(|()| disk.sync_data(&file)))
        .and_then(|()| if is_new { disk.sync_directory(store_directory) } else { Ok(()) })
        .map_err(|source| StoreError::io(&path, source))
}

fn encode(start: i64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&start.to_be_bytes());
    let crc = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&crc.to_be_bytes());
    bytes
}
