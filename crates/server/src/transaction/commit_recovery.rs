//! After a kill: commits that reached the log, but not the topic that says which transactions are done.
//!
//! A commit stores its message and is written down in the done topic a moment later, many at once. Each record there
//! says up to where in the log that is true, so a start reads what lies behind it. What it finds committed is ended,
//! and of a half message that held many the rest is stored: the decision was made.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use metaq_wire::{Record, layout};

use crate::transaction::Transactions;
use crate::transaction::half::number;
use crate::transaction::half_batch::HALF_BATCH;
use crate::transaction::open::{End, Fate, HALF_TOPIC, Ledger, Standing};

/// How each transaction of a record in the done topic ended, in the order of its body.
pub(crate) const FATES: &str = "METAQ_FATES";
/// Everything committed that lies below this in the log is in the done topic.
pub(crate) const COMMITTED_BELOW: &str = "METAQ_COMMITTED_BELOW";

/// What the done topic tells of transactions that are over.
#[derive(Default)]
pub(crate) struct Past {
    ended: Vec<(i64, End)>,
    moved: Vec<(i64, i64)>,
    pub committed_below: i64,
}

impl Past {
    pub fn read(&mut self, record: &Record<'_>, places: &[i64]) {
        let fates = record.property(FATES).and_then(|fates| std::str::from_utf8(fates).ok());
        for (place, fate) in places.iter().zip(fates.unwrap_or_default().split(',')) {
            match Fate::read(fate) {
                Some(Fate::Ended(end)) => self.ended.push((*place, end)),
                Some(Fate::MovedTo(copy)) => self.moved.push((*place, copy)),
                None => {}
            }
        }
        self.committed_below =
            self.committed_below.max(number(record.property(COMMITTED_BELOW)).unwrap_or(0));
    }

    /// Has the ledger find what is still open under all of its former places, of which a load sees only the last one.
    pub fn link(&self, ledger: &mut Ledger) {
        for (place, copy) in self.moved.iter().rev() {
            ledger.link(*place, *copy);
        }
    }

    /// Has the ledger remember it. Copies come after what they stand for, so the last one's end is known first.
    pub fn recall(&mut self, ledger: &mut Ledger) {
        let mut ends: HashMap<i64, End, RandomState> = self.ended.drain(..).collect();
        for (place, copy) in self.moved.drain(..).rev() {
            if let Some(end) = ends.get(&copy).copied() {
                ends.insert(place, end);
            }
        }
        for (place, end) in ends {
            ledger.remember(place, end);
        }
    }
}

/// A half message of which something is committed: where that was read from, and the unique keys of what is.
struct Begun {
    physical_offset: i64,
    keys: HashSet<Vec<u8>, RandomState>,
}

impl Transactions {
    pub(super) fn redo_commits(&self, ledger: &mut Ledger, committed_below: i64) {
        let Some(open_from) = ledger.open_from() else { return };
        let mut begun: HashMap<i64, Begun, RandomState> = HashMap::default();
        let mut known: HashMap<i64, Option<i64>, RandomState> = HashMap::default();
        self.store.each_record_from(open_from.max(committed_below), |record| {
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
        let stored = self.store.record_at(physical_offset)?;
        let half = Record::decode(&stored).ok().filter(|half| half.topic == HALF_TOPIC.as_bytes())?;
        match ledger.standing(half.queue_offset) {
            Standing::Open(newest) => Some(newest),
            Standing::Ended(_) | Standing::Forgotten => None,
        }
    }

    /// Stores what is missing of a half message that holds many; whether nothing is missing any more.
    fn finish_commit(&self, ledger: &mut Ledger, newest: i64, begun: &Begun) -> bool {
        let Some(stored) = self.store.record_at(begun.physical_offset) else { return true };
        let Ok(half) = Record::decode(&stored) else { return true };
        if half.property(HALF_BATCH).is_none() {
            return true;
        }
        match self.append_half_batch(&half, |_, key| begun.keys.contains(key)) {
            Ok(end_offset) => {
                ledger.note_appended(end_offset);
                true
            }
            Err(torn) => {
                // They were stored in their order, so it is the first ones that are there.
                ledger.tear(newest, begun.keys.len() + torn.stored, begun.physical_offset);
                self.store
                    .report(format!("a commit that was cut short could not be finished: {}", torn.error));
                false
            }
        }
    }
}
