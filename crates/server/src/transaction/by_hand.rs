//! Open transactions for operators: a list of them, and their end by hand.

use std::collections::BinaryHeap;

use metaq_wire::Record;

use crate::ServerError;
use crate::send::copy::without_body;
use crate::transaction::Transactions;
use crate::transaction::end::{Ended, EndedBy};
use crate::transaction::open::{End, HALF_TOPIC, Half, Look, Standing};
use crate::transaction::shares::NameKey;

/// Open transactions that are looked at under one lock: senders wait for it.
const LOCKED_MAX: usize = 2_048;
/// Bytes of half messages that one list reads, and bytes of them without bodies that it returns.
const BYTES_MAX: usize = 32 * 1024 * 1024;
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// An open transaction.
pub struct OpenTransaction {
    /// The record of its half message without the body.
    pub head: Vec<u8>,
    /// The size of the whole record.
    pub size: usize,
    pub began_ms: i64,
    /// The next turn of checks after this time takes it.
    pub check_from_ms: i64,
}

/// Open transactions, oldest first.
pub struct OpenTransactions {
    pub transactions: Vec<OpenTransaction>,
    /// All that are open, of one producer group if one was asked for.
    pub total: usize,
}

/// The outcome of an end by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    Done,
    /// It had ended before.
    Before(End),
    /// It ended too long ago to know how.
    Forgotten,
}

impl Transactions {
    /// The oldest open transactions, of all producer groups or of one, at most `look.count_max`.
    pub fn list(&self, producer_group: Option<&str>, look: &Look) -> OpenTransactions {
        let group = producer_group.map(|name| NameKey::of(name.as_bytes()));
        let mut oldest: BinaryHeap<(i64, i64)> = BinaryHeap::new();
        let mut next = 0;
        while let Some(from) = self.offer_oldest(next, group, look.count_max, &mut oldest) {
            next = from;
        }
        let (mut bytes, mut heads_bytes) = (0, 0);
        let mut transactions = Vec::new();
        for (_, queue_offset) in oldest.into_sorted_vec() {
            if bytes >= BYTES_MAX || heads_bytes >= HEADS_BYTES_MAX {
                break;
            }
            // One that has ended or was stored again meanwhile is left out: its copy is in the list.
            let Some(half) = self.ledger.lock().half(queue_offset) else { continue };
            if let Some(open) = self.open_transaction(&half, look) {
                (bytes, heads_bytes) = (bytes + open.size, heads_bytes + open.head.len());
                transactions.push(open);
            }
        }
        let total = group.map_or_else(|| self.open_count(), |group| self.ledger.lock().open_in_group(group));
        OpenTransactions { total: total.max(transactions.len()), transactions }
    }

    /// Looks at some open transactions from a queue offset on, and keeps the oldest ones. Returns where to go on.
    fn offer_oldest(
        &self,
        from: i64,
        group: Option<NameKey>,
        count_max: usize,
        oldest: &mut BinaryHeap<(i64, i64)>,
    ) -> Option<i64> {
        let ledger = self.ledger.lock();
        let mut last = None;
        for (queue_offset, half) in ledger.open_from_offset(from).take(LOCKED_MAX) {
            last = Some(*queue_offset);
            if group.is_some_and(|group| half.kind.group != group) {
                continue;
            }
            oldest.push((half.since_ms, *queue_offset));
            if oldest.len() > count_max {
                oldest.pop();
            }
        }
        last.map(|last| last + 1)
    }

    fn open_transaction(&self, half: &Half, look: &Look) -> Option<OpenTransaction> {
        let stored = self.store.record_at(half.physical_offset)?;
        let record = Record::decode(&stored).ok()?;
        Some(OpenTransaction {
            head: without_body(&record),
            size: record.size,
            began_ms: half.since_ms,
            check_from_ms: half.check_from_ms(look),
        })
    }

    /// The open transaction that has or had its half message at this physical offset. The error says why there is none.
    pub fn find(
        &self,
        physical_offset: i64,
        look: &Look,
    ) -> Result<Result<OpenTransaction, Decided>, ServerError> {
        let missing = ServerError::NoRecord(physical_offset);
        let Some(stored) = self.store.queued_record_at(physical_offset) else { return Err(missing) };
        let record = Record::decode(&stored).map_err(ServerError::Frame)?;
        if record.topic != HALF_TOPIC.as_bytes() {
            return Err(missing);
        }
        let half = {
            let ledger = self.ledger.lock();
            match ledger.standing(record.queue_offset) {
                Standing::Open(newest) => ledger.half(newest),
                Standing::Ended(end) => return Ok(Err(Decided::Before(end))),
                Standing::Forgotten => return Ok(Err(Decided::Forgotten)),
            }
        };
        half.and_then(|half| self.open_transaction(&half, look)).map(Ok).ok_or(missing)
    }

    /// Ends an open transaction for an operator, as safely as an acknowledged message. If the store refuses the end, the
    /// transaction stays open.
    pub fn decide(&self, physical_offset: i64, end: End) -> Result<Decided, ServerError> {
        let Some(stored) = self.store.queued_record_at(physical_offset) else {
            return Err(ServerError::NoRecord(physical_offset));
        };
        let record = Record::decode(&stored).map_err(ServerError::Frame)?;
        if record.topic != HALF_TOPIC.as_bytes() {
            return Err(ServerError::NoRecord(physical_offset));
        }
        let ended = self.end_half(&record, end, EndedBy::Operator).map_err(ServerError::Store)?;
        let end_offset = match ended {
            Ended::Now(end_offset) => end_offset,
            Ended::Before(before, _) => return Ok(Decided::Before(before)),
            Ended::Forgotten => return Ok(Decided::Forgotten),
            Ended::NoHalf => return Err(ServerError::NoRecord(physical_offset)),
        };
        // A commit is in the log by now; `commit_recovery` finds it there if its end is not written.
        self.write_ends();
        self.store.dispatch();
        if !self.store.wait_confirmed(end_offset, self.flush_timeout) {
            return Err(ServerError::NotFlushed);
        }
        Ok(Decided::Done)
    }
}
