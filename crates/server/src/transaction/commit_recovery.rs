//! After a kill: commits that reached the log, but not the done topic.
//!
//! A commit stores its message, and the done topic gets its end a moment later, together with others. Each record there
//! says up to which offset of the log it is complete, so a start reads the log from there. A commit that it finds ends its
//! transaction, and if the half message held many, the rest is stored: the decision was made.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use metaq_wire::{Record, layout};

use crate::transaction::Transactions;
use crate::transaction::half::number;
use crate::transaction::half_batch::HALF_BATCH;
use crate::transaction::open::{End, Fate, HALF_TOPIC, Ledger, Standing};

/// The fates of the half messages that a record of the done topic names, in the order of its body.
pub(crate) const FATES: &str = "METAQ_FATES";
/// Every commit below this offset of the log is in the done topic.
pub(crate) const COMMITTED_BELOW: &str = "METAQ_COMMITTED_BELOW";

/// The contents of the done topic.
#[derive(Default)]
pub(crate) struct Past {
    ended: Vec<(i64, End)>,
    moved: Vec<(i64, i64)>,
    pub committed_below: i64,
}

impl Past {
    pub fn read(&mut self, record: &Record<'_>, queue_offsets: &[i64]) {
        let fates = record.property(FATES).and_then(|fates| std::str::from_utf8(fates).ok());
        for (queue_offset, fate) in queue_offsets.iter().zip(fates.unwrap_or_default().split(',')) {
            match Fate::read(fate) {
                Some(Fate::Ended(end)) => self.ended.push((*queue_offset, end)),
                Some(Fate::MovedTo(copy)) => self.moved.push((*queue_offset, copy)),
                None => {}
            }
        }
        self.committed_below =
            self.committed_below.max(number(record.property(COMMITTED_BELOW)).unwrap_or(0));
    }

    /// Links the former copies of open half messages, of which the half topic alone shows only the last.
    pub fn link(&self, ledger: &mut Ledger) {
        for (queue_offset, copy) in self.moved.iter().rev() {
            ledger.link(*queue_offset, *copy);
        }
    }

    /// Hands the outcomes to the ledger, also under former copies. The last copy comes last, so its end is known first.
    pub fn remember_ends(&mut self, ledger: &mut Ledger) {
        let mut ends: HashMap<i64, End, RandomState> = self.ended.drain(..).collect();
        for (queue_offset, copy) in self.moved.drain(..).rev() {
            if let Some(end) = ends.get(&copy).copied() {
                ends.insert(queue_offset, end);
            }
        }
        for (queue_offset, end) in ends {
            ledger.remember(queue_offset, end);
        }
    }
}

/// A half message with commits in the log: its physical offset, and the unique keys of the committed messages.
struct Begun {
    physical_offset: i64,
    keys: HashSet<Vec<u8>, RandomState>,
}

impl Transactions {
    pub(super) fn finish_commits(&self, ledger: &mut Ledger, committed_below: i64) {
        let Some(open_from) = ledger.open_from() else { return };
        let mut begun: HashMap<i64, Begun, RandomState> = HashMap::default();
        let mut known: HashMap<i64, Option<i64>, RandomState> = HashMap::default();
        self.store.each_appended_record_from(open_from.max(committed_below), |record| {
            let physical_offset = record.prepared_transaction_offset;
            let is_commit = record.system_flag & layout::TRANSACTION_MASK == layout::TRANSACTION_COMMIT;
            if !is_commit {
                return;
            }
            let newest =
                *known.entry(physical_offset).or_insert_with(|| self.open_half(ledger, physical_offset));
            if let Some(newest) = newest {
                let begun = begun
                    .entry(newest)
                    .or_insert_with(|| Begun { physical_offset, keys: HashSet::default() });
                begun.keys.insert(record.property("UNIQ_KEY").unwrap_or_default().to_vec());
            }
        });
        for (newest, begun) in begun {
            if self.finish_commit(ledger, newest, &begun) {
                ledger.end(newest, End::Committed);
            }
        }
    }

    /// The queue offset of the newest copy of a half message that is still open.
    fn open_half(&self, ledger: &Ledger, physical_offset: i64) -> Option<i64> {
        let stored = self.store.appended_record_at(physical_offset)?;
        let half = Record::decode(&stored).ok().filter(|half| half.topic == HALF_TOPIC.as_bytes())?;
        match ledger.standing(half.queue_offset) {
            Standing::Open(newest) => Some(newest),
            Standing::Ended(_) | Standing::Forgotten => None,
        }
    }

    /// Stores what is missing of a half message that holds many; whether nothing is missing any more.
    fn finish_commit(&self, ledger: &mut Ledger, newest: i64, begun: &Begun) -> bool {
        let Some(stored) = self.store.appended_record_at(begun.physical_offset) else {
            return self.store.awaits_repair(begun.physical_offset).is_none();
        };
        let Ok(half) = Record::decode(&stored) else { return true };
        if half.property(HALF_BATCH).is_none() {
            return true;
        }
        match self.append_half_batch(&half, |_, key| begun.keys.contains(key)) {
            Ok(end_offset) => {
                ledger.note_appended(end_offset);
                true
            }
            Err(partial) => {
                // They were stored in their order, so it is the first ones that are there.
                ledger.note_partial_commit(newest, begun.keys.len() + partial.stored, begun.physical_offset);
                self.store
                    .report(format!("a commit that was cut short could not be finished: {}", partial.error));
                false
            }
        }
    }
}
