//! END_TRANSACTION (37): a producer commits a half message or rolls it back.

use metaq_store::StoreError;
use metaq_wire::{EndTransactionHeader, NewRecord, Record, layout};

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::route::{Ask, Outcome, Refusal};
use crate::send::copy::changed_properties;
use crate::send::properties;
use crate::transaction::Transactions;
use crate::transaction::half::destination;
use crate::transaction::half_batch::HALF_BATCH;
use crate::transaction::open::{End, HALF_TOPIC, Ledger, Standing, immunity_ms};

/// Properties that a committed message no longer has.
const HALF_PROPERTIES: [&str; 4] = ["TRAN_MSG", "REAL_TOPIC", "REAL_QID", "METAQ_HALF_BEFORE"];

/// The side that ends a transaction.
#[derive(Clone, Copy)]
pub(super) enum EndedBy {
    /// A producer is asked again if its rollback is lost with a kill, so the rollback is written with later ends.
    Producer,
    /// An operator is not asked again.
    Operator,
}

/// The outcome of a request to end a transaction.
pub(super) enum Ended {
    /// The log must be confirmed below this offset; 0 if nothing was written.
    Now(i64),
    /// It had ended like this, and everything that was written for it lies below this offset.
    Before(End, i64),
    /// It ended too long ago to know how.
    Forgotten,
    /// The record is not a half message but imitates one, or its body is damaged.
    NoHalf,
}

impl Transactions {
    pub fn handle_end(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let header = match EndTransactionHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        let end = match header.commit_or_rollback {
            layout::TRANSACTION_COMMIT => End::Committed,
            layout::TRANSACTION_ROLLBACK => End::RolledBack,
            // The producer does not know yet and will be asked again.
            0 => return ask.done(answers),
            other => {
                let remark = format!("commitOrRollback must be 8, 12 or 0, not {other}");
                return ask.refuse(answers, response_code::SYSTEM_ERROR, &remark);
            }
        };
        match self.end_transaction(&header, end, answers) {
            Ok(end_offset) => self.confirm(ask, end_offset, answers),
            Err(refusal) => ask.refuse_with(answers, &refusal),
        }
    }

    /// Ends the transaction and returns the offset below which the log must be confirmed; 0 if nothing was written.
    fn end_transaction(
        &self,
        header: &EndTransactionHeader<'_>,
        end: End,
        answers: &mut Answers,
    ) -> Result<i64, Refusal> {
        answers.note_costly();
        // Its producer may be quicker than the disk. The commit is appended and confirmed after it. The body, which may be
        // long, is only looked at where it is needed: anybody may name any record, as often as he likes.
        let stored = self.store.appended_head_at(header.commit_log_offset);
        let record = stored.as_ref().and_then(|stored| Record::decode(stored).ok());
        let Some(record) = record.filter(|record| record.topic == HALF_TOPIC.as_bytes()) else {
            return Err(Refusal::new(response_code::SYSTEM_ERROR, no_half_message(header)));
        };
        self.check_end(header, &record)?;
        match self.end_half(&record, end, EndedBy::Producer)? {
            Ended::Now(end_offset) => {
                if end == End::Committed {
                    answers.note_appended();
                }
                answers.note_ended();
                Ok(end_offset)
            }
            // The first request may still wait for the disk, and this one must not be answered before it.
            Ended::Before(before, appended_end) if before == end => Ok(appended_end),
            Ended::Before(before, _) => {
                Err(Refusal::new(response_code::SYSTEM_ERROR, ended_otherwise(before).to_string()))
            }
            Ended::Forgotten => {
                let remark = "the transaction ended long ago, and its outcome is no longer known";
                Err(Refusal::new(response_code::TRANSACTION_STATE_UNKNOWN, remark.to_string()))
            }
            Ended::NoHalf => Err(Refusal::new(response_code::SYSTEM_ERROR, no_half_message(header))),
        }
    }

    /// Ends the transaction of a half message, if it is open.
    pub(super) fn end_half(&self, record: &Record<'_>, end: End, by: EndedBy) -> Result<Ended, StoreError> {
        let mut ledger = self.ledger.lock();
        let newest = match ledger.standing(record.queue_offset) {
            Standing::Open(newest) => newest,
            Standing::Ended(before) => return Ok(Ended::Before(before, ledger.appended_end)),
            Standing::Forgotten => return Ok(Ended::Forgotten),
        };
        let is_itself = match ledger.half(newest).filter(|_| newest == record.queue_offset) {
            Some(half) => half.physical_offset == record.physical_offset,
            None => self.is_half_at(record.queue_offset, record.physical_offset),
        };
        if !is_itself || (end == End::Committed && !record.crc_matches()) {
            return Ok(Ended::NoHalf);
        }
        let mut end_offset = 0;
        match (end, by) {
            (End::Committed, _) => {
                end_offset = self.append_all(record, newest, &mut ledger)?;
                ledger.note_appended(end_offset);
                ledger.end(newest, end);
            }
            (_, EndedBy::Producer) => ledger.end(newest, end),
            (_, EndedBy::Operator) => end_offset = self.write_end(&mut ledger, newest, end)?,
        }
        drop(ledger);
        self.count_end(record, end);
        Ok(Ended::Now(end_offset))
    }

    fn count_end(&self, half: &Record<'_>, end: End) {
        let policy = self.policy.read();
        let topic = destination(half).and_then(|(topic, _)| policy.topic(topic));
        if let Some(topic) = topic {
            match end {
                End::Committed => topic.traffic.committed.add(1),
                End::RolledBack => topic.traffic.rolled_back.add(1),
                End::GivenUp => {}
            }
        }
    }

    /// Checks that the request fits the half message, comes from its producer group, and comes in time.
    fn check_end(&self, header: &EndTransactionHeader<'_>, record: &Record<'_>) -> Result<(), Refusal> {
        if record.property("PGROUP") != Some(header.producer_group.as_bytes()) {
            let remark =
                format!("the half message does not belong to producer group[{}]", header.producer_group);
            return Err(Refusal::new(response_code::SYSTEM_ERROR, remark));
        }
        if record.queue_offset != header.queue_offset {
            let remark = format!(
                "tranStateTableOffset is {}, but the half message there has {}",
                header.queue_offset, record.queue_offset
            );
            return Err(Refusal::new(response_code::SYSTEM_ERROR, remark));
        }
        let immunity = record.property("CHECK_IMMUNITY_TIME_IN_SECONDS");
        if header.from_check || immunity.is_none() {
            return Ok(());
        }
        let immunity_ms =
            immunity_ms(immunity).min(self.settings.immunity_ms_max).max(self.settings.timeout_ms);
        let age_ms = self.store.clock().now_ms().saturating_sub(record.born_timestamp_ms);
        if age_ms > immunity_ms {
            let remark = format!(
                "the transaction is {age_ms} ms old, but had to be decided within {immunity_ms} ms: wait for the check"
            );
            return Err(Refusal::new(response_code::ILLEGAL_OPERATION, remark));
        }
        Ok(())
    }

    /// Stores the messages of a half message; `newest` is the queue offset of its newest copy. If only a part of many can be
    /// stored, another try continues after it.
    fn append_all(&self, half: &Record<'_>, newest: i64, ledger: &mut Ledger) -> Result<i64, StoreError> {
        if half.property(HALF_BATCH).is_none() {
            return self.append_committed(half);
        }
        let before = ledger.stored_of(newest);
        self.append_half_batch(half, |number, _| number < before).map_err(|partial| {
            ledger.note_partial_commit(newest, before + partial.stored, half.physical_offset);
            partial.error
        })
    }

    /// Stores the message in its own queue, or where it waits for its delay.
    pub(super) fn append_committed(&self, record: &Record<'_>) -> Result<i64, StoreError> {
        let Some((topic, queue_id)) = destination(record) else {
            return Err(StoreError::BadTopic("a half message without REAL_TOPIC and REAL_QID".to_string()));
        };
        let properties = changed_properties(record.properties, &HALF_PROPERTIES, &[]);
        let marks = properties::scan(&properties);
        let (stored_topic, stored_queue, more) = self.commit_destination(topic, queue_id, &marks);
        let appended = self.store.append(&NewRecord {
            topic: stored_topic.as_bytes(),
            queue_id: stored_queue,
            flag: record.flag,
            system_flag: record.system_flag & !layout::TRANSACTION_MASK | layout::TRANSACTION_COMMIT,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host,
            store_host: self.store_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: record.physical_offset,
            body: record.body,
            body_crc: record.body_crc,
            properties: [&properties, &more, &[]],
        })?;
        Ok(appended.end_offset)
    }

    /// Answers a producer that waits, which is rare, once the end is confirmed.
    fn confirm(&self, ask: &Ask<'_>, end_offset: i64, answers: &mut Answers) -> Outcome {
        if ask.header.is_oneway() || self.store.is_confirmed(end_offset) {
            return ask.done(answers);
        }
        answers.add_ended_when_confirmed(ask, end_offset);
        Outcome::Done
    }
}

fn no_half_message(header: &EndTransactionHeader<'_>) -> String {
    format!("no half message begins at commit log offset {}", header.commit_log_offset)
}

fn ended_otherwise(end: End) -> &'static str {
    match end {
        End::Committed => "the transaction was committed before",
        End::RolledBack => "the transaction was rolled back before",
        End::GivenUp => "the transaction was given up: its message is in TRANS_CHECK_MAX_TIME_TOPIC",
    }
}
