//! The known damage of the log, which the node shows to operators and repairs.
//!
//! Reads and dispatch only name a place where they found no sound record. Housekeeping then walks to it from the start
//! of its file, so nothing counts as damaged because of a wrong pointer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use metaq_wire::Coverage;
use metaq_wire::layout;
use parking_lot::Mutex;

use crate::log::commit_log::CommitLog;
use crate::recovery::log_walk::{Content, content_at, resume};

/// Damage beyond this is found again once this is repaired.
const KNOWN_MAX: usize = 64;
const SUSPECTS_MAX: usize = 64;
/// Places that were checked and are sound; more are checked again.
const SOUND_MAX: usize = 1_024;
/// For how long a place counts as sound after its check.
const SOUND_FOR: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct LogDamage {
    /// The end of each damaged range by its start.
    known: Mutex<BTreeMap<i64, i64>>,
    suspects: Mutex<Vec<i64>>,
    /// Suspects that a check has found sound: pointers to them are wrong.
    sound: Mutex<BTreeMap<i64, Instant>>,
}

impl LogDamage {
    /// Notes that no sound record was found at a place.
    #[cold]
    pub(crate) fn suspect(&self, physical_offset: i64) {
        let mut suspects = self.suspects.lock();
        if suspects.len() < SUSPECTS_MAX && !suspects.contains(&physical_offset) {
            suspects.push(physical_offset);
        }
    }

    /// Whether a place where no sound record was found may be damaged. It may be until a check has found it sound.
    #[cold]
    pub(crate) fn may_be_damaged(&self, physical_offset: i64) -> bool {
        let checked = self.sound.lock().get(&physical_offset).copied();
        if checked.is_some_and(|checked| checked.elapsed() < SOUND_FOR) {
            return false;
        }
        self.suspect(physical_offset);
        true
    }

    /// Notes that a suspect is sound.
    pub(crate) fn acquit(&self, physical_offset: i64) {
        let mut sound = self.sound.lock();
        if sound.len() >= SOUND_MAX {
            sound.clear();
        }
        sound.insert(physical_offset, Instant::now());
    }

    pub(crate) fn take_suspects(&self) -> Vec<i64> {
        std::mem::take(&mut *self.suspects.lock())
    }

    /// Replaces what is known about a part of the log by what a check has found there.
    pub(crate) fn settle(&self, from: i64, to: i64, found: &[(i64, i64)]) {
        let mut known = self.known.lock();
        known.retain(|start, end| *end <= from || *start >= to);
        for (start, end) in found {
            if known.len() < KNOWN_MAX || known.contains_key(start) {
                known.insert(*start, *end);
            }
        }
    }

    /// The damaged ranges that retention has not deleted, in order.
    pub(crate) fn known(&self, log_start: i64) -> Vec<(i64, i64)> {
        let mut known = self.known.lock();
        known.retain(|_, end| *end > log_start);
        known.iter().map(|(start, end)| (*start, *end)).collect()
    }
}

/// The result of a check of a part of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Start and end of each damaged range.
    pub(crate) damaged: Vec<(i64, i64)>,
    /// Sound records with a checksum of the body alone.
    pub(crate) uncovered: u64,
}

/// Checks the log between two physical offsets as recovery does: lengths, offsets and checksums of all records, and
/// that blanks are empty. Returns None if the log does not reach that far. A damaged range begins where a
/// record should begin, and ends where the next sound one does. It may lie before `from` in the same file: records
/// are found through those before them. A file that somebody has deleted is damaged as a whole: its bytes are still in
/// memory, but the next start would miss them.
pub(crate) fn check(log: &CommitLog, from: i64, to: i64) -> Option<Checked> {
    let end = log.appended_end();
    if from < log.start_offset() || from > to || to > end {
        return None;
    }
    let (mut damaged, mut uncovered): (Vec<(i64, i64)>, u64) = Default::default();
    let mut note = |start: i64, end: i64| match damaged.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => damaged.push((start, end)),
    };
    let mut at = log.file_at(from).map_or_else(|| log.gap_start(from).min(from), |file| file.start_offset);
    let mut seen = -1;
    while at < to {
        let Some(file) = log.file_at(at) else {
            let next = log.file_after(at).map_or(end, |file| file.start_offset).min(end);
            note(at, next);
            at = next;
            continue;
        };
        if seen != file.start_offset && !log.disk.exists(file.path()) {
            note(at, file.end_offset().min(end));
            at = file.end_offset();
            continue;
        }
        seen = file.start_offset;
        let position = (at - file.start_offset) as u64;
        let bytes = file.readable().get(position as usize..).unwrap_or_default();
        let next = match content_at(bytes, at, false) {
            // Only sizes matter below `from`.
            Content::Record(record) if at + record.size as i64 <= from => Some(at + record.size as i64),
            Content::Record(record) if record.crc_matches() => {
                uncovered += u64::from(record.coverage() == Coverage::Body);
                Some(at + record.size as i64)
            }
            Content::Blank if is_empty(bytes.get(layout::BLANK_BYTES..).unwrap_or_default()) => {
                Some(file.end_offset())
            }
            _ => None,
        };
        at = next.unwrap_or_else(|| {
            let search_end = (end.min(file.end_offset()) - file.start_offset) as u64;
            let next = resume(&file, position, search_end, true)
                .map_or(file.end_offset(), |position| file.start_offset + position as i64)
                .min(end);
            note(at, next);
            next
        });
    }
    // Retention may have deleted files meanwhile.
    let log_start = log.start_offset();
    damaged.retain(|(_, end)| *end > log_start);
    Some(Checked { damaged, uncovered })
}

/// Whether there are only zeros, as behind the mark of a blank.
pub(crate) fn is_empty(filler: &[u8]) -> bool {
    filler.chunks(4_096).all(|chunk| chunk.iter().fold(0, |seen, byte| seen | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_replaces_what_was_known_about_its_part_of_the_log() {
        let damage = LogDamage::default();
        damage.settle(0, 100, &[(10, 20), (50, 60)]);
        assert_eq!(damage.known(0), [(10, 20), (50, 60)]);
        damage.settle(0, 40, &[]);
        assert_eq!(damage.known(0), [(50, 60)]);
        damage.settle(40, 200, &[(50, 60), (90, 95)]);
        assert_eq!(damage.known(60), [(90, 95)], "the rest was deleted");
    }

    #[test]
    fn a_place_is_looked_at_once() {
        let damage = LogDamage::default();
        for place in (0..1_000).chain(0..1_000) {
            damage.suspect(place % 5);
        }
        assert_eq!(damage.take_suspects(), [0, 1, 2, 3, 4]);
        assert!(damage.take_suspects().is_empty());
    }
}
