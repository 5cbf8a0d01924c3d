//! Raw append: copies bytes of another log as they are, as a replica does with the log of its master.
//!
//! ```text
//! | record | record | … | blank mark (8 bytes), rest of the file |
//! ```
//! The bytes continue the log exactly where it ends. Records keep their queue offset and store time, so a log that is
//! copied this way is identical byte for byte, provided that both use the same file size.

use metaq_wire::layout;

use crate::error::StoreError;
use crate::log::commit_log::{Appender, BLANK_BYTES, CommitLog, is_queued};
use crate::log::copy_permit::CopyPermit;
use crate::queue::deletion::deleted_topic;
use crate::queue::table::Queues;
use crate::recovery::log_walk::{Content, content_at};

impl CommitLog {
    /// Appends the records one by one and returns the log's new end. Each is taken whole or not at all: on an error the
    /// log ends in front of the record that was refused.
    pub(crate) fn append_raw(
        &self,
        permit: &CopyPermit,
        physical_offset: i64,
        bytes: &[u8],
        queues: &Queues,
    ) -> Result<i64, StoreError> {
        let mut appender = self.lock_appender()?;
        let mut rest = bytes;
        let mut at = physical_offset;
        while !rest.is_empty() {
            self.gate.check_copy()?;
            let end_offset = appender.writer.physical_offset();
            if at != end_offset {
                return Err(refused(at, format!("the log ends at {end_offset}")));
            }
            let size = match blank_size(rest) {
                Some(size) => self
                    .append_blank(&mut appender, permit, at, size, rest.len())
                    .inspect_err(|error| self.gate.note_append_error(error))?,
                None => self.append_raw_record(&mut appender, permit, at, rest, queues)?,
            };
            rest = &rest[size..];
            at += size as i64;
        }
        Ok(appender.writer.physical_offset())
    }

    fn append_raw_record(
        &self,
        appender: &mut Appender,
        permit: &CopyPermit,
        physical_offset: i64,
        bytes: &[u8],
        queues: &Queues,
    ) -> Result<usize, StoreError> {
        let Content::Record(record) = content_at(bytes, physical_offset, true) else {
            return Err(refused(physical_offset, "no sound record begins there".to_owned()));
        };
        if appender.writer.remaining() < record.size as u64 + BLANK_BYTES {
            let remaining = appender.writer.remaining();
            let detail = format!("a record of {} bytes does not fit the {remaining} left", record.size);
            return Err(refused(physical_offset, detail));
        }
        // First of all: if the queue cannot be loaded, nothing may be written.
        let queue = match queues.obtain(record.topic, record.queue_id) {
            Ok(queue) => Some(queue),
            // Dispatch reports such a record and leaves it out.
            Err(StoreError::BadTopic(_) | StoreError::BadQueue(_)) => None,
            Err(error) => return Err(error),
        };
        let begun_again = match deleted_topic(&record) {
            Some(topic) => queues.of_topic(topic)?,
            None => Vec::new(),
        };
        self.make_room(appender, record.size as u64)?;
        // From here on nothing waits for the disk.
        let _allowed = permit.hold()?;
        appender.writer.fill(record.size, |target| target.copy_from_slice(&bytes[..record.size]));
        if let Some(queue) = queue.filter(|_| is_queued(record.system_flag)) {
            queue.pass_offset(record.queue_offset);
        }
        for queue in begun_again {
            queue.begin_again();
        }
        appender.note_time(record.store_timestamp_ms);
        self.publish(appender);
        Ok(record.size)
    }

    /// Continues in the next file, as the other log did.
    fn append_blank(
        &self,
        appender: &mut Appender,
        permit: &CopyPermit,
        physical_offset: i64,
        size: usize,
        received: usize,
    ) -> Result<usize, StoreError> {
        let remaining = appender.writer.remaining();
        if size as u64 != remaining || received < size {
            let detail = format!(
                "a blank of {size} bytes, {received} of them here, does not fill the {remaining} left"
            );
            return Err(refused(physical_offset, detail));
        }
        appender.writer.file().allocate(&*self.disk, appender.writer.position() + BLANK_BYTES)?;
        self.preallocation.prepare(0)?;
        let _allowed = permit.hold()?;
        self.roll(appender)?;
        Ok(size)
    }
}

/// How many of the bytes, which begin with a record or a blank, make up whole records: as many as fit `bytes_max`, but
/// at least one.
pub(crate) fn whole_records(bytes: &[u8], bytes_max: usize) -> usize {
    if bytes.len() <= bytes_max {
        return bytes.len();
    }
    let mut end = 0;
    while let Some(size) = bytes[end..].first_chunk().copied().map(u32::from_be_bytes) {
        let next = end.saturating_add(size as usize);
        if size == 0 || next > bytes.len() || (end > 0 && next > bytes_max) {
            break;
        }
        end = next;
    }
    // A damaged size leads nowhere; whoever takes the bytes refuses them by name.
    if end == 0 { bytes_max } else { end }
}

/// The size of the blank, if the bytes begin with one.
fn blank_size(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
    let size = word(layout::at::SIZE).filter(|_| word(layout::at::MAGIC) == Some(layout::MAGIC_BLANK));
    size.map(|size| size as usize)
}

fn refused(physical_offset: i64, detail: String) -> StoreError {
    StoreError::BadRawBytes { physical_offset, detail }
}
