//! Queries by key. The index proposes records, and each one is checked in the log.

use bytes::Bytes;

use crate::api::QueryResult;
use crate::index::file::{key_hash, topic_hash};
use crate::index::key_index::Index;
use crate::index::keys::{Found, keys};
use crate::log::commit_log::CommitLog;
use crate::recovery::log_walk::{Content, content_at};

/// To read a record and to compare its keys costs about as much as to examine this many entries.
const RECORD_ENTRIES: u64 = 64;

/// The records that a query asks for, and the most that it may examine.
pub(crate) struct KeyQuery<'a> {
    pub(crate) topic: &'a str,
    pub(crate) key: &'a str,
    pub(crate) count_max: usize,
    pub(crate) begin_ms: i64,
    pub(crate) end_ms: i64,
    pub(crate) entries_max: u64,
    pub(crate) bytes_max: usize,
}

impl Index {
    /// Finds records with the key stored in the time range, newest first. Every record is checked in the log, but only
    /// if its entry may lie in the range.
    pub(crate) fn query(&self, log: &CommitLog, query: &KeyQuery<'_>) -> QueryResult {
        let key_hash = key_hash(topic_hash(query.topic), query.key);
        let mut result = QueryResult::default();
        // A record has several entries if it was indexed again after a kill.
        let mut returned = Vec::new();
        let mut returned_bytes = 0;
        let files = self.files.read();
        if let Some(last) = files.last() {
            result.last_store_time = last.span().end_time_ms;
            result.last_physical_offset = last.span().end_offset;
        }
        for file in files.iter().rev() {
            let span = file.span();
            let mut wrong_at = None;
            if file.is_empty() || span.begin_time_ms > query.end_ms || span.end_time_ms < query.begin_ms {
                continue;
            }
            let is_sound = file.find(key_hash, |found| {
                if result.examined_entries >= query.entries_max {
                    result.is_cut_short = true;
                    return false;
                }
                result.examined_entries += 1;
                let physical_offset = found.physical_offset;
                if found.is_of_key
                    && found.may_be_within(&span, query.begin_ms, query.end_ms)
                    && !returned.contains(&physical_offset)
                {
                    result.examined_entries += RECORD_ENTRIES;
                    let matched = matching_record(log, physical_offset, query, key_hash);
                    if matched == Match::WrongEntry {
                        wrong_at = Some(physical_offset);
                    }
                    if matched == Match::Damaged {
                        result.damaged_at = result.damaged_at.or(Some(physical_offset));
                    }
                    if let Match::Record(record) = matched {
                        returned_bytes += record.len();
                        if returned_bytes > query.bytes_max && !returned.is_empty() {
                            result.is_cut_short = true;
                            return false;
                        }
                        returned.push(physical_offset);
                        result.records.push(record);
                    }
                }
                result.records.len() < query.count_max
            });
            if !is_sound || wrong_at.is_some() {
                self.request_rebuild(span.begin_offset, "a query met an entry that nobody wrote there");
            }
            if result.is_cut_short || result.records.len() >= query.count_max {
                break;
            }
        }
        result
    }
}

/// Whether the record that an entry of the index points at has the key.
#[derive(PartialEq, Eq)]
enum Match {
    Record(Bytes),
    No,
    Damaged,
    /// The record is sound and has no key with this hash, or there is none.
    WrongEntry,
}

fn matching_record(log: &CommitLog, physical_offset: i64, query: &KeyQuery<'_>, key_hash: i32) -> Match {
    if physical_offset >= log.progress.confirmable() {
        return Match::No;
    }
    let Some(file) = log.file_at(physical_offset) else { return Match::No };
    let position = (physical_offset - file.start_offset) as u64;
    let Some(bytes) = file.readable().get(position as usize..) else { return Match::No };
    // The checksum comes last: it needs the whole body, and another key may have the same hash.
    let is_sound = || matches!(content_at(bytes, physical_offset, true), Content::Record(_));
    match content_at(bytes, physical_offset, false) {
        Content::Record(record) => {
            let fits = record.topic == query.topic.as_bytes()
                && (query.begin_ms..=query.end_ms).contains(&record.store_timestamp_ms)
                && keys(&record).any(|word| word == query.key);
            if fits && is_sound() {
                return file.bytes(position, record.size).map_or(Match::No, Match::Record);
            }
            let mut found = Found::default();
            found.add(&record);
            if !fits && found.keys.iter().any(|key| key.hash == key_hash) {
                return Match::No;
            }
            if !fits && is_sound() {
                return Match::WrongEntry;
            }
        }
        // The rest of a file, or nothing: no record begins there.
        _ if !log.damage.may_be_damaged(physical_offset) => return Match::WrongEntry,
        _ => {}
    }
    if log.damage.may_be_damaged(physical_offset) { Match::Damaged } else { Match::No }
}
