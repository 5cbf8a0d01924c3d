//! Half messages in the log: stored, stored again for a check, given up, and found again after a restart.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::RandomState;
use metaq_store::{Appended, Filter, GetStatus, StoreError};
use metaq_wire::{NewRecord, Record, body_crc};

use crate::ServerError;
use crate::send::copy::{Copy, changed_properties};
use crate::transaction::Transactions;
use crate::transaction::commit_recovery::{COMMITTED_BELOW, FATES, Past};
use crate::transaction::open::{
    DONE_TOPIC, Done, End, Fate, HALF_TOPIC, Half, Kind, Ledger, Look, TRANSACTION_GROUP,
};
use crate::transaction::shares::NameKey;

/// Half messages that one record of the done topic names, at most.
const DONE_OFFSETS_MAX: usize = 512;
/// The half message that a copy replaced. It tells after a kill that there are not two of them.
const BEFORE: &str = "METAQ_HALF_BEFORE";
/// The queue offset of the first copy of a half message that holds many: its driver knows that one.
const FIRST: &str = "METAQ_HALF_FIRST";
pub(crate) const CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
/// The same in a copy that Apache's broker made while the original was immune.
const APACHE_BEFORE: &str = "TRAN_PREPARED_QUEUE_OFFSET";
const READ_RECORDS: usize = 512;
/// About the number of ends in one record of the done topic of a busy broker.
const ENDS_PER_RECORD: usize = 128;
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Properties of half messages that only this broker may set.
pub(crate) const COPY_NOTES: [&str; 3] = [BEFORE, FIRST, APACHE_BEFORE];

/// A half message that is due for a check, or only for another copy.
pub struct DueTransaction {
    pub record: bytes::Bytes,
    pub began_ms: i64,
    /// It is too early to ask its producer.
    pub is_immune: bool,
}

/// The record at a queue offset, as a start finds it.
enum Seen<'a, 'b> {
    Record(&'a Record<'b>),
    /// A damaged record that may be repaired.
    Damaged(i64),
}

impl Transactions {
    /// Stores a half message; None if too many transactions are open, in all or of its producer group or address.
    pub fn append_half(&self, record: &NewRecord<'_>, kind: Kind) -> Result<Option<Appended>, StoreError> {
        let mut ledger = self.ledger.lock();
        if ledger.full(&kind).is_some() {
            return Ok(None);
        }
        let appended = self.store.append(record)?;
        let half =
            Half::new(appended.physical_offset, record.born_timestamp_ms, appended.store_timestamp_ms, kind);
        ledger.open(appended.queue_offset, half);
        Ok(Some(appended))
    }

    /// Writes every end that is not in the done topic yet, many to a record. If the store refuses, they go with the next
    /// ones; after a kill in between, `commit_recovery` finds the commits in the log.
    pub fn write_ends(&self) {
        self.write_ends_of(&mut self.ledger.lock());
    }

    /// Asks for the last ends to be flushed if nothing else has. Call it now and then.
    pub fn flush_ends(&self) {
        self.store.request_confirm(self.ledger.lock().appended_end);
    }

    fn write_ends_of(&self, ledger: &mut Ledger) {
        let _they_go_with_the_next = self.try_write_ends(ledger);
    }

    /// Ends an open transaction once its end is in the done topic. If the store refuses, the transaction stays open. Returns
    /// the offset below which the log must be confirmed.
    pub(super) fn write_end(
        &self,
        ledger: &mut Ledger,
        queue_offset: i64,
        end: End,
    ) -> Result<i64, StoreError> {
        ledger.note_unwritten(queue_offset, Fate::Ended(end));
        if let Err(error) = self.try_write_ends(ledger) {
            ledger.unwritten.pop();
            return Err(error);
        }
        ledger.end_written(queue_offset, end);
        Ok(ledger.appended_end)
    }

    fn try_write_ends(&self, ledger: &mut Ledger) -> Result<(), StoreError> {
        while !ledger.unwritten.is_empty() {
            let count = ledger.unwritten.len().min(DONE_OFFSETS_MAX);
            let ended = &ledger.unwritten[..count];
            let highest = ended.iter().map(|done| done.queue_offset).max().unwrap_or(0);
            let body = joined(ended, |done| done.queue_offset.to_string());
            let fates = joined(ended, |done| done.fate.text());
            let log_end = ended.last().map_or(0, |done| done.log_end);
            let properties =
                format!("TAGS\u{1}d\u{2}{FATES}\u{1}{fates}\u{2}{COMMITTED_BELOW}\u{1}{log_end}\u{2}");
            let done = self.done_record(body.as_bytes(), properties.as_bytes());
            let appended = self.store.append(&done)?;
            ledger.unwritten.drain(..count);
            ledger.note_done(appended.queue_offset, highest, appended.end_offset);
        }
        Ok(())
    }

    fn done_record<'a>(&self, body: &'a [u8], properties: &'a [u8]) -> NewRecord<'a> {
        NewRecord {
            topic: DONE_TOPIC.as_bytes(),
            queue_id: 0,
            flag: 0,
            system_flag: 0,
            born_timestamp_ms: self.store.clock().now_ms(),
            born_host: self.store_host,
            store_host: self.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            body_crc: body_crc(body),
            properties: [properties, &[], &[]],
        }
    }

    /// The half messages of a turn of checks. Gives those up whose record is gone.
    pub fn due(&self, look: &Look) -> Vec<DueTransaction> {
        let mut ledger = self.ledger.lock();
        let mut records = Vec::new();
        for (queue_offset, half) in ledger.due(look, READ_BYTES) {
            if !self.store.is_confirmed(half.physical_offset + 1) {
                continue;
            }
            match self.store.record_at(half.physical_offset) {
                Some(record) => {
                    let is_immune = half.is_immune(look);
                    records.push(DueTransaction { record, began_ms: half.since_ms, is_immune });
                }
                None if self.store.awaits_repair(half.physical_offset).is_some() => {}
                None => ledger.end(queue_offset, End::GivenUp),
            }
        }
        records
    }

    /// Stores these half messages again at the end of their queue, so that they hold up nothing, and ends the old copies.
    /// Returns the new ones, once they are confirmed, with the topic and queue that their producer knows. Transactions that
    /// have ended meanwhile are left out.
    pub fn renew(&self, queue_offsets: &[i64], checked: bool) -> Result<Vec<Vec<u8>>, ServerError> {
        let mut ledger = self.ledger.lock();
        let mut copies = Vec::with_capacity(queue_offsets.len());
        let mut outcome = Ok(());
        for queue_offset in queue_offsets {
            match self.renew_one(&mut ledger, *queue_offset, checked) {
                Ok(copy) => copies.extend(copy),
                Err(error) => {
                    outcome = Err(ServerError::Store(error));
                    break;
                }
            }
        }
        self.write_ends_of(&mut ledger);
        let end = ledger.appended_end;
        drop(ledger);
        self.store.dispatch();
        if !copies.is_empty() && !self.store.wait_confirmed(end, self.flush_timeout) {
            return Err(ServerError::NotFlushed);
        }
        // After an error the copies made so far are checked all the same, the rest in the next turn.
        if copies.is_empty() { outcome.map(|()| copies) } else { Ok(copies) }
    }

    fn renew_one(
        &self,
        ledger: &mut Ledger,
        queue_offset: i64,
        checked: bool,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(half) = ledger.half(queue_offset) else {
            return Ok(None);
        };
        let Some(stored) = self.store.record_at(half.physical_offset) else {
            if self.store.awaits_repair(half.physical_offset).is_none() {
                ledger.end(queue_offset, End::GivenUp);
            }
            return Ok(None);
        };
        let Ok(record) = Record::decode(&stored) else {
            ledger.end(queue_offset, End::GivenUp);
            return Ok(None);
        };
        let times = number(record.property(CHECK_TIMES)).unwrap_or(0).max(0).saturating_add(1).to_string();
        let before = queue_offset.to_string();
        let mut set = vec![(BEFORE, before.as_str())];
        if checked {
            set.push((CHECK_TIMES, &times));
        }
        let first = number(record.property(FIRST)).unwrap_or(queue_offset).to_string();
        if half.kind.is_batch {
            set.push((FIRST, &first));
        }
        let properties = changed_properties(record.properties, &[], &set);
        let copy = Copy {
            topic: HALF_TOPIC,
            queue_id: 0,
            reconsume_times: record.reconsume_times,
            properties: &properties,
        };
        let appended = match copy.append(&record, &self.store, self.store_host) {
            Ok(appended) => appended,
            // It does not fit with the longer properties, so it stays where it is until it is too old.
            Err(StoreError::TooLarge { .. } | StoreError::BadRecord(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let renewed = half.stored_again(appended.physical_offset, appended.store_timestamp_ms);
        ledger.replace(queue_offset, appended.queue_offset, renewed);
        ledger.note_appended(appended.end_offset);
        Ok(self.restored(&record, &properties, &appended))
    }

    /// The record of a half message with the topic and queue that its producer gave it.
    fn restored(&self, record: &Record<'_>, properties: &[u8], appended: &Appended) -> Option<Vec<u8>> {
        let (topic, queue_id) = destination(record)?;
        let restored = NewRecord {
            topic: topic.as_bytes(),
            queue_id,
            flag: record.flag,
            system_flag: record.system_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host,
            store_host: self.store_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: record.prepared_transaction_offset,
            body: record.body,
            body_crc: record.body_crc,
            properties: [properties, &[], &[]],
        };
        restored.encode(appended.queue_offset, appended.physical_offset, appended.store_timestamp_ms).ok()
    }

    /// Gives transactions up: their messages go to `topic` for a person to look at. Returns how many there were.
    pub fn give_up(&self, queue_offsets: &[i64], topic: &str) -> Result<usize, ServerError> {
        let mut ledger = self.ledger.lock();
        let mut outcome = Ok(0);
        for queue_offset in queue_offsets {
            match self.give_up_one(&mut ledger, *queue_offset, topic) {
                Ok(parked) => outcome = outcome.map(|count| count + usize::from(parked)),
                Err(error) => {
                    outcome = Err(ServerError::Store(error));
                    break;
                }
            }
        }
        self.write_ends_of(&mut ledger);
        drop(ledger);
        self.store.dispatch();
        outcome
    }

    fn give_up_one(&self, ledger: &mut Ledger, queue_offset: i64, topic: &str) -> Result<bool, StoreError> {
        let Some(half) = ledger.half(queue_offset) else {
            return Ok(false);
        };
        let stored = self.store.record_at(half.physical_offset);
        if let (None, Some(damaged)) = (&stored, self.store.awaits_repair(half.physical_offset)) {
            return Err(damaged);
        }
        if let Some(record) = stored.as_deref().and_then(|stored| Record::decode(stored).ok()) {
            let copy = Copy {
                topic,
                queue_id: 0,
                reconsume_times: record.reconsume_times,
                properties: record.properties,
            };
            let appended = copy.append(&record, &self.store, self.store_host)?;
            ledger.note_appended(appended.end_offset);
        }
        ledger.end(queue_offset, End::GivenUp);
        Ok(true)
    }

    /// Opens a transaction again that was given up: its message in `topic` becomes a half message again, with no checks
    /// counted. False if too many transactions are open.
    pub fn resume(&self, physical_offset: i64, topic: &str) -> Result<bool, ServerError> {
        let Some(stored) = self.store.queued_record_at(physical_offset) else {
            return Err(ServerError::NoRecord(physical_offset));
        };
        let record = Record::decode(&stored).map_err(ServerError::Frame)?;
        if record.topic != topic.as_bytes() || destination(&record).is_none() {
            return Err(ServerError::NoRecord(physical_offset));
        }
        let properties =
            changed_properties(record.properties, &[BEFORE, APACHE_BEFORE], &[(CHECK_TIMES, "0")]);
        let copy = NewRecord {
            topic: HALF_TOPIC.as_bytes(),
            queue_id: 0,
            flag: record.flag,
            system_flag: record.system_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host,
            store_host: self.store_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: 0,
            body: record.body,
            body_crc: record.body_crc,
            properties: [&properties, &[], &[]],
        };
        let Some(appended) = self.append_half(&copy, Kind::of(&record)).map_err(ServerError::Store)? else {
            return Ok(false);
        };
        self.store.dispatch();
        if !self.store.wait_confirmed(appended.end_offset, self.flush_timeout) {
            return Err(ServerError::NotFlushed);
        }
        Ok(true)
    }

    /// The first offsets that matter in the half topic and in the done topic, once everything before them is confirmed.
    /// None if that takes too long.
    pub fn progress(&self, timeout: Duration) -> Option<(i64, i64)> {
        let (offsets, end) = {
            let mut ledger = self.ledger.lock();
            self.write_ends_of(&mut ledger);
            (ledger.offsets(), ledger.appended_end)
        };
        self.store.dispatch();
        self.store.wait_confirmed(end, timeout).then_some(offsets)
    }

    /// Finds the open transactions, from the committed offsets on, before the plane starts. Returns how many there are.
    ///
    /// The last records of a new master are not confirmed yet, so they are in no queue. They were acknowledged by the
    /// master before it, or will be: they count too.
    pub fn load(&self) -> usize {
        let confirmed = self.store.confirmed_offset();
        let (half_from, done_from) = (self.begin_of(HALF_TOPIC), self.begin_of(DONE_TOPIC));
        let mut ledger = self.ledger.lock();
        ledger.begin_at(half_from, done_from);
        let mut past = Past::default();
        let mut firsts = Vec::new();
        let ended = self.read_ends(&mut ledger, (half_from, done_from), confirmed, &mut past);
        self.each_record(HALF_TOPIC, half_from, confirmed, |seen| {
            let record = match seen {
                Seen::Record(record) => record,
                Seen::Damaged(queue_offset) => {
                    if !ended.contains(&queue_offset) {
                        self.open_damaged(&mut ledger, queue_offset);
                    }
                    return;
                }
            };
            ledger.see(record.queue_offset);
            let before = number(record.property(BEFORE));
            let apache_before = number(record.property(APACHE_BEFORE)).filter(|_| before.is_none());
            if ended.contains(&record.queue_offset)
                || apache_before.is_some_and(|replaced| ended.contains(&replaced))
            {
                return;
            }
            firsts.extend(number(record.property(FIRST)).map(|first| (first, record.queue_offset)));
            match before.or(apache_before).filter(|replaced| *replaced < record.queue_offset) {
                Some(before) => ledger.replace(before, record.queue_offset, Half::of(record)),
                None => ledger.open(record.queue_offset, Half::of(record)),
            }
        });
        past.link(&mut ledger);
        // The done topic may no longer name the first copies, but their drivers know no other.
        for (first, copy_offset) in firsts {
            ledger.link_first(first, copy_offset);
        }
        past.remember_ends(&mut ledger);
        self.finish_commits(&mut ledger, past.committed_below);
        self.write_ends_of(&mut ledger);
        let open = ledger.open_count();
        drop(ledger);
        self.store.dispatch();
        open
    }

    /// Reads the done topic. Returns the half messages from `half_from` on whose transactions have ended.
    fn read_ends(
        &self,
        ledger: &mut Ledger,
        (half_from, done_from): (i64, i64),
        confirmed: i64,
        past: &mut Past,
    ) -> HashSet<i64, RandomState> {
        let mut ended = HashSet::default();
        // Older ends are read too, so that a repeated request gets a true answer.
        let records_kept = (self.settings.ended_kept / ENDS_PER_RECORD) as i64;
        let past_from = done_from.saturating_sub(records_kept).max(self.store.min_offset(DONE_TOPIC, 0));
        self.each_record(DONE_TOPIC, past_from, confirmed, |seen| {
            let record = match seen {
                Seen::Record(record) => record,
                Seen::Damaged(queue_offset) => {
                    // Nobody knows what it ended, so the next start must read from here on again.
                    if queue_offset >= done_from {
                        ledger.note_done(queue_offset, i64::MAX, 0);
                    }
                    return;
                }
            };
            let texts = std::str::from_utf8(record.body).unwrap_or_default().split(',');
            let queue_offsets: Vec<i64> = texts.filter_map(|text| text.trim().parse().ok()).collect();
            past.read(record, &queue_offsets);
            if record.queue_offset < done_from {
                return;
            }
            let done = queue_offsets.into_iter().filter(|queue_offset| *queue_offset >= half_from);
            let highest = done.inspect(|queue_offset| {
                ended.insert(*queue_offset);
            });
            let highest = highest.max().unwrap_or(-1);
            ledger.note_done(record.queue_offset, highest, 0);
        });
        ended
    }

    /// The committed offset of one of the two topics, within the bounds of its queue.
    fn begin_of(&self, topic: &str) -> i64 {
        let committed = self.offsets.get(TRANSACTION_GROUP, topic, 0).unwrap_or(0);
        committed.max(self.store.min_offset(topic, 0)).min(self.store.max_offset(topic, 0))
    }

    /// Whether the half queue has that record there. A message's body may imitate a half message.
    pub(super) fn is_half_at(&self, queue_offset: i64, physical_offset: i64) -> bool {
        let got = self.store.get(HALF_TOPIC, 0, queue_offset, 1, 1, &Filter::All);
        let record = got.slices.first().and_then(|slice| Record::decode(slice).ok());
        record.is_some_and(|found| {
            found.queue_offset == queue_offset && found.physical_offset == physical_offset
        })
    }

    /// Keeps a transaction open whose half message is damaged: nobody is asked about it until it is repaired.
    fn open_damaged(&self, ledger: &mut Ledger, queue_offset: i64) {
        let entries = self.store.queue_entries(HALF_TOPIC, 0, queue_offset, 1);
        let Some(entry) = entries.first() else { return };
        let now_ms = self.store.clock().now_ms();
        let unknown = NameKey::of(&[]);
        let kind = Kind {
            immunity_ms: -1,
            is_batch: false,
            group: unknown,
            topic: unknown,
            address: unknown,
            bytes: entry.size.max(0) as u32,
        };
        ledger.open(queue_offset, Half::new(entry.physical_offset, now_ms, now_ms, kind));
    }

    /// Visits the records of a topic from a queue offset on: those in its queue, and then those of the log from
    /// `confirmed` on that are not in the queue yet.
    fn each_record(&self, topic: &str, from: i64, confirmed: i64, mut take: impl FnMut(Seen<'_, '_>)) {
        let mut queue_offset = from;
        while queue_offset < self.store.max_offset(topic, 0) {
            let got = self.store.get(topic, 0, queue_offset, READ_RECORDS, READ_BYTES, &Filter::All);
            if got.status == GetStatus::Found {
                for slice in &got.slices {
                    let mut rest = &slice[..];
                    while let Ok(record) = Record::decode(rest) {
                        take(Seen::Record(&record));
                        rest = &rest[record.size..];
                    }
                }
            }
            if got.status == GetStatus::Damaged {
                take(Seen::Damaged(queue_offset));
                queue_offset += 1;
                continue;
            }
            if got.next_offset <= queue_offset {
                break;
            }
            queue_offset = got.next_offset;
        }
        self.store.each_appended_record_from(confirmed, |record| {
            if record.topic == topic.as_bytes() && record.queue_id == 0 && record.queue_offset >= queue_offset
            {
                take(Seen::Record(record));
            }
        });
    }
}

/// The topic and queue of a half message after its commit.
pub(crate) fn destination<'a>(record: &Record<'a>) -> Option<(&'a str, i32)> {
    let topic = std::str::from_utf8(record.property("REAL_TOPIC")?).ok()?;
    let queue_id = std::str::from_utf8(record.property("REAL_QID")?).ok()?.parse().ok()?;
    Some((topic, queue_id))
}

fn joined(ended: &[Done], text: impl Fn(&Done) -> String) -> String {
    ended.iter().map(text).collect::<Vec<_>>().join(",")
}

pub(super) fn number(property: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(property?).ok()?.trim().parse().ok()
}
