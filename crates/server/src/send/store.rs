//! Appending to the log, and how a store's error reads for a sender.

use std::sync::atomic::Ordering::Relaxed;

use metaq_store::{Appended, AppendedBatch, StoreError};
use metaq_wire::{NewRecord, SendHeader, body_crc, layout};

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::route::{Ask, Refusal};
use crate::send::handler::Sender;
use crate::send::properties::Marks;
use crate::send::rewrite::WaitsFor;
use crate::transaction::open::{Kind, immunity_ms};
use crate::transaction::shares::NameKey;

impl Sender {
    /// The queue of a message whose sender left the choice to the broker.
    pub(super) fn choose_queue(&self, write_queues: i32) -> i32 {
        let turn = self.next_queue.fetch_add(1, Relaxed);
        (turn % write_queues.max(1) as u32) as i32
    }

    /// A record of this request, with its body and without properties.
    pub(super) fn record<'a>(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        (topic, queue_id): (&'a str, i32),
        body: &'a [u8],
    ) -> NewRecord<'a> {
        NewRecord {
            topic: topic.as_bytes(),
            queue_id,
            flag: header.flag,
            // Only the broker makes a message part of a transaction.
            system_flag: header.system_flag & !layout::TRANSACTION_MASK,
            born_timestamp_ms: header.born_timestamp_ms,
            born_host: ask.peer.remote,
            store_host: self.store_host,
            reconsume_times: header.reconsume_times,
            prepared_transaction_offset: 0,
            body,
            body_crc: body_crc(body),
            properties: [&[], &[], &[]],
        }
    }

    pub(super) fn append(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        record: &NewRecord<'_>,
        waits_for: WaitsFor,
        marks: &Marks<'_>,
        answers: &mut Answers,
    ) -> Result<Appended, Refusal> {
        let appended = match waits_for {
            WaitsFor::Commit => self.append_half(ask, header, record, marks)?,
            _ => self.store.append(record)?,
        };
        count(ask, 1, answers);
        Ok(appended)
    }

    pub(super) fn append_batch(
        &self,
        ask: &Ask<'_>,
        records: &[NewRecord<'_>],
        answers: &mut Answers,
    ) -> Result<AppendedBatch, Refusal> {
        let appended = self.store.append_batch(records)?;
        count(ask, records.len(), answers);
        Ok(appended)
    }

    fn append_half(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        record: &NewRecord<'_>,
        marks: &Marks<'_>,
    ) -> Result<Appended, Refusal> {
        let kind = Kind {
            immunity_ms: immunity_ms(marks.immunity),
            is_batch: marks.half_batch.is_some(),
            group: NameKey::of(header.producer_group.as_bytes()),
            topic: NameKey::of(header.topic.as_bytes()),
            address: NameKey::of_address(ask.peer.remote.ip()),
            bytes: record.size() as u32,
        };
        self.transactions
            .append_half(record, kind)?
            .ok_or_else(|| Refusal::new(response_code::SYSTEM_BUSY, self.transactions.explain_full(&kind)))
    }
}

fn count(ask: &Ask<'_>, messages: usize, answers: &mut Answers) {
    answers.note_appended();
    ask.peer.counts.messages_in.add(messages as u64);
    ask.peer.counts.bytes_in.add(ask.body.len() as u64);
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::TooLarge { .. } => response_code::MESSAGE_ILLEGAL,
            StoreError::Busy { .. } => response_code::SYSTEM_BUSY,
            _ => response_code::SERVICE_NOT_AVAILABLE,
        };
        Refusal::new(code, error.to_string())
    }
}
