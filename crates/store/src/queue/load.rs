//! Loads a consume queue from its files: finds its end, and cuts off entries whose records the commit log lacks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::queue::consume_queue::{Queue, Segment, read_entries};
use crate::queue::files::{ENTRY_BYTES, Entry, QueueDisk, parse_file_name};

/// Loads a queue; None if it has no files. With a `cut_from`, entries of records from that physical offset on are
/// dropped, in the files too, because a replay of the log is about to add them again.
pub(crate) fn load(
    disk: &QueueDisk,
    topic: &Arc<str>,
    queue_id: i32,
    serial: u64,
    cut_from: Option<i64>,
) -> Result<Option<Queue>, StoreError> {
    let directory = disk.directory(topic, queue_id);
    let fail = |source| StoreError::io(&directory, source);
    let mut segments = list(disk, &directory, serial).map_err(fail)?;
    if segments.is_empty() {
        return Ok(None);
    }
    let end = loop {
        let Some(segment) = segments.last().copied() else { break 0 };
        let file = disk.file((serial, segment.first), || directory.clone()).map_err(fail)?;
        let end = find_end(disk, &file, segment, cut_from).map_err(fail)?;
        if cut_from.is_some() {
            clear_from(disk, &file, (end - segment.first) as u64 * ENTRY_BYTES).map_err(fail)?;
        }
        // The first file stays even if it is empty: it tells at which offset the queue continues.
        if end > segment.first || segments.len() == 1 {
            break end;
        }
        segments.pop();
        if cut_from.is_some() {
            disk.forget((serial, segment.first));
            disk.disk.remove_file(file.path()).map_err(fail)?;
        }
    };
    Ok(Some(Queue::new(Arc::clone(topic), queue_id, serial, segments, end)))
}

/// Lists the queue's files. The length of a file and the start of the next one tell how many entries it holds, so a
/// store that was written with other sizes is read correctly.
fn list(disk: &QueueDisk, directory: &Path, serial: u64) -> io::Result<Vec<Segment>> {
    let firsts: Vec<i64> = disk
        .disk
        .read_directory(directory)?
        .iter()
        .filter(|entry| !entry.is_directory)
        .filter_map(|entry| parse_file_name(&entry.name))
        .collect();
    let mut segments = Vec::with_capacity(firsts.len());
    for (place, first) in firsts.iter().copied().enumerate() {
        let file = disk.file((serial, first), || directory.to_owned())?;
        let len = disk.disk.len(&file)?;
        let capacity = disk.file_entries.max((len / ENTRY_BYTES) as i64);
        let entries = match firsts.get(place + 1) {
            Some(next) => capacity.min(next - first),
            None => capacity,
        };
        // A file that was cut short elsewhere gets its length back, because Apache's store maps it.
        if len < entries as u64 * ENTRY_BYTES {
            disk.disk.set_len(&file, entries as u64 * ENTRY_BYTES)?;
        }
        segments.push(Segment { first, entries });
    }
    Ok(segments)
}

/// Finds the offset after the last written entry of the file, or after the last one whose record ends at or before
/// `cut_from`.
fn find_end(disk: &QueueDisk, file: &DiskFile, segment: Segment, cut_from: Option<i64>) -> io::Result<i64> {
    let mut entries = Vec::new();
    let (mut low, mut high) = (0, segment.entries);
    while low < high {
        let middle = low + (high - low) / 2;
        // Three in a row, so that a single damaged entry is not taken for the end.
        entries.clear();
        read_entries(disk, file, middle as u64, (segment.entries - middle).min(3) as usize, &mut entries)?;
        if entries.iter().all(Entry::is_unwritten) { high = middle } else { low = middle + 1 }
    }
    let Some(cut_from) = cut_from else { return Ok(segment.first + low) };
    const CHUNK: i64 = 1_024;
    while low > 0 {
        let from = (low - CHUNK).max(0);
        entries.clear();
        read_entries(disk, file, from as u64, (low - from) as usize, &mut entries)?;
        let kept = entries.iter().rposition(|entry| {
            // Holes in front of a queue's first entry point at 0 and stay; zeros and later records go.
            *entry == Entry::HOLE || (!entry.is_void() && entry.end_offset() <= cut_from)
        });
        match kept {
            Some(place) => return Ok(segment.first + from + place as i64 + 1),
            None => low = from,
        }
    }
    Ok(segment.first)
}

/// Zeroes the rest of the file if there is anything in it.
fn clear_from(disk: &QueueDisk, file: &DiskFile, from: u64) -> io::Result<()> {
    const BLOCK: u64 = 4_096;
    let len = disk.disk.len(file)?;
    let block_end = from.div_ceil(BLOCK).saturating_mul(BLOCK).min(len);
    let mut rest_of_block = vec![0; block_end.saturating_sub(from) as usize];
    disk.disk.read_at(file, &mut rest_of_block, from)?;
    let is_clear =
        rest_of_block.iter().all(|byte| *byte == 0) && disk.disk.data_end(file, block_end)? <= block_end;
    if is_clear || from >= len { Ok(()) } else { disk.disk.zero(file, from, len - from) }
}
