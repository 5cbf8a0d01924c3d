//! Puts records together again that a master has cut anywhere.

use std::io;

use metaq_store::Store;
use metaq_wire::layout;

use crate::replicate::apache::bad;

/// Size and magic of a record or a blank.
const MARK_BYTES: usize = 8;
/// The largest record, or blank behind the last record of a file, that is kept in memory.
const ITEM_BYTES_MAX: usize = 64 << 20;

/// The bytes behind the end of a store's log that do not make up a record yet.
pub(super) struct Records {
    /// The physical offset of the first byte.
    at: i64,
    bytes: Vec<u8>,
}

impl Records {
    /// Continues a log that ends at `at`. `known` are the bytes from there on that were not received.
    pub(super) fn new(at: i64, known: &[u8]) -> Self {
        Self { at, bytes: known.to_vec() }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends all records that are whole.
    pub(super) fn append_to(&mut self, store: &Store) -> io::Result<()> {
        let size = self.whole_bytes(store.log_file_bytes())?;
        if size > 0 {
            store.append_raw(self.at, &self.bytes[..size]).map_err(io::Error::other)?;
            store.dispatch();
            self.bytes.drain(..size);
            self.at += size as i64;
        }
        Ok(())
    }

    fn whole_bytes(&self, file_bytes: i64) -> io::Result<usize> {
        let mut end = 0;
        while let Some(mark) = self.bytes[end..].first_chunk::<MARK_BYTES>() {
            let size = item_bytes(*mark, self.at + end as i64, file_bytes)?;
            if size > self.bytes.len() - end {
                break;
            }
            end += size;
        }
        Ok(end)
    }
}

/// The size of the record or blank that begins with these bytes, which must fit into its file.
fn item_bytes(mark: [u8; MARK_BYTES], physical_offset: i64, file_bytes: i64) -> io::Result<usize> {
    let [s0, s1, s2, s3, m0, m1, m2, m3] = mark;
    let (size, magic) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([m0, m1, m2, m3]));
    let left = file_bytes - physical_offset % file_bytes;
    let is_sound = match magic {
        layout::MAGIC_BLANK => i64::from(size) == left,
        layout::MAGIC_V1 | layout::MAGIC_V2 => {
            size as usize >= layout::RECORD_BYTES_MIN && i64::from(size) + MARK_BYTES as i64 <= left
        }
        _ => return Err(bad(format!("no record begins at offset {physical_offset} of the master's log"))),
    };
    if !is_sound {
        let what = if magic == layout::MAGIC_BLANK { "blank" } else { "record" };
        return Err(bad(format!(
            "a {what} of {size} bytes at offset {physical_offset} does not fit the {left} bytes left in its file of \
             {file_bytes} bytes: commit_log_file_bytes here must equal mappedFileSizeCommitLog of the master"
        )));
    }
    if size as usize > ITEM_BYTES_MAX {
        return Err(bad(format!(
            "{size} bytes at offset {physical_offset} belong together; the limit is {ITEM_BYTES_MAX}"
        )));
    }
    Ok(size as usize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FILE: i64 = 4096;

    fn mark(size: u32, magic: u32) -> [u8; MARK_BYTES] {
        let mut mark = [0; MARK_BYTES];
        mark[..4].copy_from_slice(&size.to_be_bytes());
        mark[4..].copy_from_slice(&magic.to_be_bytes());
        mark
    }

    #[test]
    fn what_fits_its_file_has_a_size() {
        assert_eq!(item_bytes(mark(200, layout::MAGIC_V1), FILE, FILE).unwrap(), 200);
        assert_eq!(item_bytes(mark(4088, layout::MAGIC_V2), 0, FILE).unwrap(), 4088, "a blank still fits");
        assert_eq!(item_bytes(mark(96, layout::MAGIC_BLANK), 2 * FILE - 96, FILE).unwrap(), 96);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let cases = [
            (mark(4089, layout::MAGIC_V1), 0, "mappedFileSizeCommitLog"),
            (mark(90, layout::MAGIC_V1), 0, "mappedFileSizeCommitLog"),
            (mark(u32::MAX, layout::MAGIC_V1), 0, "mappedFileSizeCommitLog"),
            (mark(95, layout::MAGIC_BLANK), FILE - 96, "mappedFileSizeCommitLog"),
            (mark(0, 0), 7, "no record begins at offset 7"),
        ];
        for (mark, physical_offset, reason) in cases {
            let error = item_bytes(mark, physical_offset, FILE).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let large = item_bytes(mark(65 << 20, layout::MAGIC_V1), 0, 1 << 30).unwrap_err().to_string();
        assert!(large.contains("the limit is 67108864"), "{large}");
    }
}
