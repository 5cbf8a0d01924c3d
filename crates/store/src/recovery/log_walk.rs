//! Walks the commit log record by record, and continues after damaged records.
//!
//! If position P is damaged, these rules apply in this order:
//! 1. If P is recognisable (its magic and its own physical offset are right), take its size field, then the size that
//!    its inner lengths add up to. If a sound record, a blank or the end of the file follows there, continue there.
//! 2. Continue at the next sound record in the same file whose own physical-offset field names its position. If P is
//!    recognisable, the search starts after its size, so that bytes inside a torn message's body are never taken for
//!    a record; otherwise it starts at the next byte.
//! 3. Continue at the start of the next file.
//!
//! A record is sound if its lengths fill its size exactly, and its magic, its own physical offset and its checksum are
//! right. If none of the three rules applies, P is the end of the log, and everything after it is a torn tail.

use metaq_wire::{Record, layout};

use crate::log::commit_log::CommitLog;
use crate::log::mapped::MappedFile;

const MAGICS: [[u8; 4]; 2] = [layout::MAGIC_V1.to_be_bytes(), layout::MAGIC_V2.to_be_bytes()];

/// The content of the log at a position.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Record(Record<'a>),
    /// The rest of this file is filler.
    Blank,
    /// Zeros: nothing was written here.
    Nothing,
    Damaged,
}

/// Decodes what the bytes begin with. They reach from a position in a file to the end of its readable part.
#[inline]
pub(crate) fn content_at(bytes: &[u8], physical_offset: i64, check_crc: bool) -> Content<'_> {
    let (Some(size), Some(magic)) = (word(bytes, layout::at::SIZE), word(bytes, layout::at::MAGIC)) else {
        // Too short even for a blank mark.
        return Content::Blank;
    };
    match magic {
        layout::MAGIC_V1 | layout::MAGIC_V2 => match Record::decode(bytes) {
            Ok(record)
                if record.physical_offset == physical_offset
                    && record.queue_offset >= 0
                    && (!check_crc || record.crc_matches()) =>
            {
                Content::Record(record)
            }
            _ => Content::Damaged,
        },
        layout::MAGIC_BLANK if size as usize == bytes.len() => Content::Blank,
        0 if size == 0 => Content::Nothing,
        _ => Content::Damaged,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<i64> {
    bytes.get(at..)?.first_chunk().copied().map(i64::from_be_bytes)
}

/// The next position to continue from after damage or zeros at `from` in the same file; None if nothing sound follows.
/// The byte-wise search of rule 2 ends at `search_end`. `next_file_is_sound` tells whether the log continues there.
pub(crate) fn resume(file: &MappedFile, from: u64, search_end: u64, next_file_is_sound: bool) -> Option<u64> {
    let bytes = file.readable().get(from as usize..)?;
    let physical_offset = file.start_offset + from as i64;
    let mut search_from = 1;
    if is_recognisable(bytes, physical_offset) {
        for size in
            [word(bytes, layout::at::SIZE).map(|size| size as usize), inner_size(bytes)].into_iter().flatten()
        {
            if size >= layout::RECORD_BYTES_MIN && leads_on(bytes, physical_offset, size, next_file_is_sound)
            {
                return Some(from + size as u64);
            }
        }
        let size = word(bytes, layout::at::SIZE).unwrap_or_default() as usize;
        if (layout::RECORD_BYTES_MIN..=bytes.len()).contains(&size) {
            search_from = size;
        }
    }
    let search_end = search_end.saturating_sub(from) as usize;
    find_record(bytes, physical_offset, search_from, search_end).map(|at| from + at as u64)
}

fn is_recognisable(bytes: &[u8], physical_offset: i64) -> bool {
    matches!(word(bytes, layout::at::MAGIC), Some(layout::MAGIC_V1 | layout::MAGIC_V2))
        && long(bytes, layout::at::PHYSICAL_OFFSET) == Some(physical_offset)
}

fn leads_on(bytes: &[u8], physical_offset: i64, size: usize, next_file_is_sound: bool) -> bool {
    match bytes.get(size..) {
        Some([]) => next_file_is_sound,
        Some(rest) => {
            matches!(
                content_at(rest, physical_offset + size as i64, true),
                Content::Record(_) | Content::Blank
            )
        }
        None => false,
    }
}

/// The size of a record as the sum of its inner lengths, whatever its size field says.
fn inner_size(bytes: &[u8]) -> Option<usize> {
    let system_flag = word(bytes, layout::at::SYSTEM_FLAG)? as i32;
    let host = |v6_bit| {
        if system_flag & v6_bit == 0 { layout::HOST_V4_BYTES } else { layout::HOST_V6_BYTES }
    };
    let body_length_at = layout::store_timestamp_at(system_flag) + 8 + host(layout::STORE_HOST_V6) + 12;
    let topic_at = body_length_at + 4 + word(bytes, body_length_at)? as usize;
    let properties_at = match word(bytes, layout::at::MAGIC)? {
        layout::MAGIC_V1 => topic_at + 1 + usize::from(*bytes.get(topic_at)?),
        _ => topic_at + 2 + usize::from(u16::from_be_bytes(*bytes.get(topic_at..)?.first_chunk()?)),
    };
    Some(properties_at + 2 + usize::from(u16::from_be_bytes(*bytes.get(properties_at..)?.first_chunk()?)))
}

/// The first sound record (or the blank that ends the file) between two positions.
fn find_record(bytes: &[u8], physical_offset: i64, from: usize, end: usize) -> Option<usize> {
    let end = end.min(bytes.len());
    let mut at = from;
    loop {
        // Search for the first byte of the magic number, which follows the size field.
        let skipped = find_magic_byte(bytes.get(at + layout::at::MAGIC..end)?)?;
        at += skipped;
        let rest = bytes.get(at..)?;
        let magic: &[u8; 4] = rest.get(layout::at::MAGIC..)?.first_chunk()?;
        let is_record = MAGICS.contains(magic)
            && long(rest, layout::at::PHYSICAL_OFFSET) == Some(physical_offset + at as i64)
            && matches!(content_at(rest, physical_offset + at as i64, true), Content::Record(_));
        let is_blank = *magic == layout::MAGIC_BLANK.to_be_bytes()
            && matches!(content_at(rest, physical_offset + at as i64, true), Content::Blank);
        if is_record || is_blank {
            return Some(at);
        }
        at += 1;
    }
}

/// Finds the first byte of a magic number. Most of an unfinished file is zeros, which are skipped in large strides.
fn find_magic_byte(bytes: &[u8]) -> Option<usize> {
    const STRIDE: usize = 4_096;
    let is_first = |byte: &u8| *byte == MAGICS[0][0] || *byte == layout::MAGIC_BLANK.to_be_bytes()[0];
    let mut at = 0;
    for chunk in bytes.chunks(STRIDE) {
        let is_zero = chunk.iter().fold(0, |seen, byte| seen | byte) == 0;
        let place = if is_zero { None } else { chunk.iter().position(is_first) };
        if let Some(place) = place {
            return Some(at + place);
        }
        at += chunk.len();
    }
    None
}

/// One step of [`walk`].
pub(crate) enum Step<'a> {
    Record(Record<'a>),
    /// Bytes that are not a record.
    Gap {
        from: i64,
        to: i64,
    },
}

/// Visits every record between two physical offsets of an open log, in order, as long as `visit` returns true. Returns
/// where it stopped.
#[inline]
pub(crate) fn walk(
    log: &CommitLog,
    from: i64,
    end: i64,
    check_crc: bool,
    mut visit: impl FnMut(Step<'_>) -> bool,
) -> i64 {
    let mut at = from;
    while at < end {
        let Some(file) = log.file_at(at).or_else(|| log.file_after(at)) else { return end };
        if at < file.start_offset {
            // Deleted, or missing.
            let go_on = visit(Step::Gap { from: at, to: file.start_offset.min(end) });
            at = file.start_offset;
            if !go_on {
                return at;
            }
            continue;
        }
        while at < end.min(file.end_offset()) {
            let position = (at - file.start_offset) as u64;
            let bytes = file.readable().get(position as usize..).unwrap_or_default();
            let go_on = match content_at(bytes, at, check_crc) {
                Content::Record(record) => {
                    at += record.size as i64;
                    visit(Step::Record(record))
                }
                Content::Blank => {
                    at = file.end_offset();
                    true
                }
                Content::Nothing | Content::Damaged => {
                    let from = at;
                    let search_end = (end - file.start_offset) as u64;
                    at = resume(&file, position, search_end, true)
                        .map_or(file.end_offset(), |position| file.start_offset + position as i64)
                        .min(end);
                    visit(Step::Gap { from, to: at })
                }
            };
            if !go_on {
                return at;
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use metaq_wire::{NewRecord, body_crc};

    use super::*;
    use crate::disk::SystemDisk;

    fn record(body: &[u8], physical_offset: i64) -> Vec<u8> {
        let host = ([127, 0, 0, 1], 10911).into();
        let record = NewRecord {
            topic: b"t",
            queue_id: 0,
            flag: 0,
            system_flag: 0,
            born_timestamp_ms: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            body_crc: body_crc(body),
            properties: [b"K\x01v\x02", b"", b""],
        };
        record.encode(0, physical_offset, 1).unwrap_or_default()
    }

    /// A file of 4 KiB that starts at 8192 with three records in it, and where they start.
    fn three_records() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = Vec::new();
        let mut starts = [0; 3];
        for (place, start) in starts.iter_mut().enumerate() {
            *start = bytes.len();
            bytes.extend(record(&[b'x'; 50], 8_192 + bytes.len() as i64));
            assert!(place < 3);
        }
        bytes.resize(4_096, 0);
        (bytes, starts)
    }

    fn resumed(
        bytes: &[u8],
        from: usize,
        search_end: usize,
    ) -> Result<Option<u64>, Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("file");
        std::fs::write(&path, bytes)?;
        let file = MappedFile::open(&SystemDisk, &path, 8_192, 4_096, 4_096)?;
        Ok(resume(&file, from as u64, search_end as u64, false))
    }

    #[test]
    fn a_place_is_told_by_what_stands_there() {
        let good = record(b"body", 8_192);
        assert!(matches!(content_at(&good, 8_192, true), Content::Record(_)));
        assert!(matches!(content_at(&good, 8_193, true), Content::Damaged), "it lies somewhere else");
        assert!(matches!(content_at(&good[..good.len() - 1], 8_192, true), Content::Damaged));
        let mut bad = good.clone();
        bad[90] ^= 1;
        assert!(matches!(content_at(&bad, 8_192, true), Content::Damaged));
        assert!(matches!(content_at(&bad, 8_192, false), Content::Record(_)));
        assert!(matches!(content_at(&[0; 100], 8_192, true), Content::Nothing));
        assert!(matches!(content_at(&[0; 7], 8_192, true), Content::Blank), "too little for anything");
        let mut blank = vec![0, 0, 0, 20];
        blank.extend(layout::MAGIC_BLANK.to_be_bytes());
        blank.resize(20, 0);
        assert!(matches!(content_at(&blank, 8_192, true), Content::Blank));
        blank.push(0);
        assert!(matches!(content_at(&blank, 8_192, true), Content::Damaged), "its length must reach the end");
    }

    #[test]
    fn the_walk_goes_on_behind_damage() -> Result<(), Box<dyn std::error::Error>> {
        let (good, starts) = three_records();
        let next = Some(starts[2] as u64);
        // The body, the size, the body's length, the magic, the own offset: each byte of the record in turn.
        for position in starts[1]..starts[2] {
            let mut bytes = good.clone();
            bytes[position] ^= 0x20;
            assert_eq!(resumed(&bytes, starts[1], 4_096)?, next, "flip at {}", position - starts[1]);
        }
        let mut bytes = good.clone();
        bytes[starts[1]..starts[2]].fill(0);
        assert_eq!(resumed(&bytes, starts[1], 4_096)?, next);
        assert_eq!(resumed(&bytes, starts[1], starts[1])?, None, "no search, no way");
        assert_eq!(resumed(&good, starts[2] + 1, 4_096)?, None, "nothing follows");
        Ok(())
    }

    #[test]
    fn a_torn_body_is_not_searched() -> Result<(), Box<dyn std::error::Error>> {
        // A body that holds a record made to fit its place, torn after it.
        let inner = record(b"forged", 8_192 + 88);
        let mut body = inner.clone();
        body.resize(600, b'x');
        let mut bytes = record(&body, 8_192);
        bytes.truncate(88 + inner.len() + 10);
        bytes.resize(4_096, 0);
        assert!(matches!(content_at(&bytes[88..], 8_192 + 88, true), Content::Record(_)));
        assert_eq!(resumed(&bytes, 0, 4_096)?, None);
        Ok(())
    }
}
