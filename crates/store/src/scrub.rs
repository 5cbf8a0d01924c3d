//! The log read a piece at a time, for a scrubber that verifies all of it at a low rate.
//!
//! Pieces are read through the file and not through the mapping: what was not in the page cache before is not in it
//! afterwards, and a bad sector is an error instead of a signal.

use metaq_wire::layout;

use crate::api::{Bounds, Filter};
use crate::error::StoreError;
use crate::log::damage::is_empty;
use crate::log::mapped::MappedFile;
use crate::queue::consume_queue::Queue;
use crate::recovery::log_walk::{Content, Step, content_at, walk};
use crate::store::{OpenStore, Store};

const PIECE_BYTES: usize = 1 << 20;
/// Damaged records that one queue is searched for after a piece was found damaged.
const NAMED_MAX: usize = 100;

/// A part of the log that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// The physical offset at which the next part begins.
    pub next_offset: i64,
    /// The checksum of the bytes up to there, for a comparison with another log; None if they are damaged.
    pub checksum: Option<u32>,
    /// The damaged ranges that begin there.
    pub damaged: Vec<(i64, i64)>,
}

/// How far the bytes of a piece are sound.
enum Verified {
    Records(usize),
    /// Not one whole record: the first one has this many bytes.
    NeedsMore(usize),
    Blank,
    Damaged,
}

impl Store {
    /// Verifies a part of the confirmed log: whole records of about `bytes_max` bytes in one file. None at the end. A record
    /// or a file begins at `from`.
    pub fn scrub(&self, from: i64, bytes_max: usize) -> Result<Option<Scrubbed>, StoreError> {
        self.shared.gate.check_open()?;
        let log = &self.shared.log;
        let end = log.progress.confirmable().min(log.appended_end());
        let from = from.max(log.start_offset());
        if from >= end {
            return Ok(None);
        }
        let Some(file) = log.file_at(from) else {
            let next_offset = log.file_after(from).map_or(end, |file| file.start_offset);
            return Ok(Some(self.shared.damage_found(from, next_offset)));
        };
        let until = end.min(file.end_offset());
        let mut piece = self.shared.piece(&file, from, bytes_max.min((until - from) as usize))?;
        loop {
            let scrubbed = match verify(&piece, from, file.end_offset() - from) {
                Verified::NeedsMore(size) if (size as i64) <= until - from && size > piece.len() => {
                    piece = self.shared.piece(&file, from, size)?;
                    continue;
                }
                Verified::Records(size) => {
                    let records = &piece[..size];
                    let checked = self.shared.check_entries(records);
                    checked.unwrap_or_else(|error| {
                        self.report(format!("queue entries cannot be read: {error}"))
                    });
                    self.shared.index.scrub(records);
                    let checksum = Some(crc32fast::hash(records));
                    Scrubbed { next_offset: from + size as i64, checksum, damaged: Vec::new() }
                }
                Verified::Blank => self.shared.scrub_blank(&file, from)?,
                Verified::Damaged | Verified::NeedsMore(_) => {
                    self.shared.damage_found(from, file.end_offset())
                }
            };
            return Ok(Some(scrubbed));
        }
    }

    /// The checksum of the log's bytes between two offsets, by which two logs can be compared. None if this log does not
    /// have all of them, or cannot read them.
    pub fn raw_checksum(&self, from_offset: i64, to_offset: i64) -> Option<u32> {
        let log = &self.shared.log;
        if to_offset > log.appended_end() {
            return None;
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut at = from_offset;
        while at < to_offset {
            let file = log.file_at(at)?;
            let size = PIECE_BYTES.min((to_offset.min(file.end_offset()) - at) as usize);
            let piece = self.shared.piece(&file, at, size);
            hasher.update(&piece.map_err(|error| self.report(error.to_string())).ok()?);
            at += size as i64;
        }
        Some(hasher.finalize())
    }

    /// Names the messages of a damaged part of the log in the reports and counts them, as a read does that comes to them.
    /// It looks into all queues, so call it on a thread that may wait.
    pub fn name_damaged(&self, from: i64, to: i64) -> Result<(), StoreError> {
        for (topic, queue_id) in self.all_queues()? {
            let places = self.with_queue(&topic, queue_id, |queue| self.entries_within(queue, from, to));
            for queue_offset in places.unwrap_or_default() {
                let bounds = Bounds { count_max: 1, bytes_max: 1, examined_bytes_max: 0 };
                let _noted = self.get_within(&topic, queue_id, queue_offset, bounds, &Filter::All);
            }
        }
        Ok(())
    }

    fn all_queues(&self) -> Result<Vec<(String, i32)>, StoreError> {
        let topics = self.topics()?;
        let queues = topics
            .iter()
            .flat_map(|topic| self.queue_ids(topic).into_iter().map(|queue_id| (topic.clone(), queue_id)));
        Ok(queues.collect())
    }

    /// The queue offsets of the entries that point into a part of the log.
    fn entries_within(&self, queue: &Queue, from: i64, to: i64) -> std::io::Result<Vec<i64>> {
        let disk = &self.shared.queues.disk;
        let min_offset = queue.stored_min_offset(disk, self.shared.log.start_offset())?;
        let first =
            queue.first_where(disk, min_offset, queue.max_offset(), |entry| entry.physical_offset >= from)?;
        let mut entries = Vec::new();
        queue.read(disk, first, NAMED_MAX, &mut entries)?;
        let within = entries.iter().take_while(|entry| entry.physical_offset < to);
        Ok((first..).zip(within).map(|(queue_offset, _)| queue_offset).collect())
    }
}

impl OpenStore {
    /// Checks a place again as every other check does, and returns the damage that begins there. A scrub goes on behind
    /// it, or behind the record that is there if this check finds it sound, at `to` at the latest.
    fn damage_found(&self, from: i64, to: i64) -> Scrubbed {
        let damaged = self.check_log(from, from + 1).unwrap_or_default().damaged;
        let next_offset = damaged.iter().map(|range| range.1).max().filter(|next| *next > from);
        let next_offset = next_offset.unwrap_or_else(|| self.record_end_behind(from, to));
        Scrubbed { next_offset, checksum: None, damaged }
    }

    /// The end of the record that contains an offset, or `to` if there is none.
    fn record_end_behind(&self, offset: i64, to: i64) -> i64 {
        let first = self.log.file_at(offset).map_or(offset, |file| file.start_offset);
        let mut end = to;
        walk(&self.log, first, to, false, |step| {
            let step_end = match step {
                Step::Record(record) => record.physical_offset + record.size as i64,
                Step::Gap { to, .. } => to,
            };
            if step_end > offset {
                end = step_end.min(to);
            }
            step_end <= offset
        });
        end
    }

    fn scrub_blank(&self, file: &MappedFile, from: i64) -> Result<Scrubbed, StoreError> {
        let mut hasher = crc32fast::Hasher::new();
        let (mut at, mut is_sound) = (from, true);
        while at < file.end_offset() {
            let piece = self.piece(file, at, PIECE_BYTES.min((file.end_offset() - at) as usize))?;
            let mark = if at == from { layout::BLANK_BYTES.min(piece.len()) } else { 0 };
            is_sound &= is_empty(&piece[mark..]);
            hasher.update(&piece);
            at += piece.len() as i64;
        }
        if !is_sound {
            return Ok(self.damage_found(from, file.end_offset()));
        }
        let checksum = Some(hasher.finalize());
        Ok(Scrubbed { next_offset: file.end_offset(), checksum, damaged: Vec::new() })
    }

    /// Bytes of one file of the log.
    fn piece(&self, file: &MappedFile, from: i64, len: usize) -> Result<Vec<u8>, StoreError> {
        let mut piece = vec![0; len];
        let read = self.disk.read_once(file.path(), &mut piece, (from - file.start_offset) as u64);
        match read {
            Ok(count) if count == len => Ok(piece),
            Ok(count) => {
                file.note_cut((from - file.start_offset) as u64 + count as u64);
                Err(StoreError::io(file.path(), std::io::ErrorKind::UnexpectedEof.into()))
            }
            Err(source) => Err(StoreError::io(file.path(), source)),
        }
    }
}

/// Verifies the records that a piece begins with. `remaining` is how far its file reaches.
fn verify(piece: &[u8], physical_offset: i64, remaining: i64) -> Verified {
    let mut at = 0;
    loop {
        let (rest, remaining) = (&piece[at..], remaining - at as i64);
        let is_whole_tail = remaining < layout::BLANK_BYTES as i64;
        let next = match head(rest) {
            _ if is_whole_tail => Verified::Blank,
            None => Verified::NeedsMore(layout::BLANK_BYTES),
            Some((size, layout::MAGIC_BLANK)) if i64::from(size) == remaining => Verified::Blank,
            Some((size, layout::MAGIC_V1 | layout::MAGIC_V2)) if size as usize > rest.len() => {
                if i64::from(size) > remaining {
                    Verified::Damaged
                } else {
                    Verified::NeedsMore(size as usize)
                }
            }
            Some(_) => match content_at(rest, physical_offset + at as i64, true) {
                Content::Record(record) => {
                    at += record.size;
                    continue;
                }
                _ => Verified::Damaged,
            },
        };
        // The next part begins with what does not fit into this one.
        return if at > 0 { Verified::Records(at) } else { next };
    }
}

/// The size and the magic number that the bytes begin with.
fn head(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
    Some((word(layout::at::SIZE)?, word(layout::at::MAGIC)?))
}
