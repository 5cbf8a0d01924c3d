//! One send from its frame to its answer: validate, rewrite, store, answer.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use metaq_store::Store;
use metaq_wire::properties::find;
use metaq_wire::{MessageIds, NewRecord, SendHeader};

use crate::codes::response_code;
use crate::limits::flow::Flow;
use crate::metrics::traffic::MessageType;
use crate::net::answers::Answers;
use crate::net::route::{Ask, Outcome, Refusal};
use crate::policy::{Policy, Topic};
use crate::send::answer::{Origin, SendAnswer, Stored};
use crate::send::keys::{KeyBudget, Keys};
use crate::send::properties::{self, Marks};
use crate::send::rewrite::{self, AddedProperties, DEAD_LETTER_PREFIX, WaitsFor};
use crate::send::validate;
use crate::settings::BrokerSettings;
use crate::timer::delay_levels::DelayLevels;
use crate::timer::due_time::DueTimes;
use crate::transaction::Transactions;

/// Stores what clients send.
pub struct Sender {
    pub(super) store: Arc<Store>,
    pub(super) store_host: SocketAddr,
    pub(super) transactions: Arc<Transactions>,
    pub(super) delay_levels: Arc<DelayLevels>,
    pub(super) flush_timeout: Duration,
    pub(super) next_queue: AtomicU32,
    pub(super) origin: Arc<Origin>,
    pub(super) due_times: DueTimes,
    pub(super) broker_name: String,
    policy: Arc<Policy>,
    flow: Arc<Flow>,
    added: Arc<AddedProperties>,
    message_size_bytes_max: usize,
    message_keys_max: usize,
    key_budget: KeyBudget,
}

impl Sender {
    #[allow(clippy::too_many_arguments, reason = "the rooms that a send passes through")]
    pub fn new(
        store: Arc<Store>,
        store_host: SocketAddr,
        settings: &BrokerSettings,
        policy: Arc<Policy>,
        transactions: Arc<Transactions>,
        delay_levels: Arc<DelayLevels>,
        due_times: DueTimes,
        flow: Arc<Flow>,
        added: Arc<AddedProperties>,
    ) -> Self {
        let origin = Origin { region: settings.region.clone(), message_ids: MessageIds::of(store_host) };
        Sender {
            store,
            store_host,
            transactions,
            delay_levels,
            flush_timeout: Duration::from_millis(settings.flush_timeout_ms),
            next_queue: AtomicU32::new(0),
            origin: Arc::new(origin),
            due_times,
            broker_name: settings.name.clone(),
            policy,
            flow,
            added,
            message_size_bytes_max: settings.message_size_bytes_max,
            message_keys_max: settings.message_keys_max,
            key_budget: KeyBudget::new(settings.message_keys_per_second),
        }
    }

    pub fn handle(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let mut header = match SendHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        if let Err(refusal) = validate::own_properties_size(header.properties.len()) {
            return ask.refuse_with(answers, &refusal);
        }
        let policy = self.policy.read();
        let Some(dead_letters) = rewrite::dead_letter_topic(&policy, &header) else {
            let what = "the retry topic's group";
            return ask.unknown(answers, response_code::SUBSCRIPTION_GROUP_NOT_EXIST, what, &header.topic);
        };
        let given_up = dead_letters.is_some().then(|| retried_topic(&header).to_owned());
        if let Some(dead_letters) = dead_letters {
            header.topic = Cow::Owned(dead_letters);
            header.queue_id = 0;
        }
        let Some(topic) = policy.topic(&header.topic) else {
            return ask.unknown(answers, response_code::TOPIC_NOT_EXIST, "topic", &header.topic);
        };
        if let Err(refusal) = validate::topic(&self.broker_name, policy.permission, topic, &header) {
            return ask.refuse_with(answers, &refusal);
        }
        let send = |answers: &mut Answers| {
            let queue_id =
                if header.queue_id < 0 { self.choose_queue(topic.write_queues) } else { header.queue_id };
            if header.batch {
                self.send_batch(ask, &header, topic, queue_id, answers)?;
            } else {
                self.send_one(ask, &header, topic, queue_id, answers)?;
            }
            if let Some(origin) = &given_up {
                self.count_dead_letter(&header.topic, origin);
            }
            Ok(())
        };
        if let Some(limit) = &topic.send_limit {
            return self.flow.send_within(limit, topic, ask, &header, answers, send);
        }
        match send(answers) {
            Ok(()) => Outcome::Done,
            Err(refusal) => ask.refuse_with(answers, &refusal),
        }
    }

    fn send_one(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        topic: &Topic,
        queue_id: i32,
        answers: &mut Answers,
    ) -> Result<(), Refusal> {
        validate::body_size(ask.body.len(), self.message_size_bytes_max)?;
        let marks = properties::scan(header.properties.as_bytes());
        let mut keys = Keys::default();
        keys.add(&marks, header.properties.len() + ask.body.len(), self.message_keys_max)?;
        let waits_for = self.waits_for(header, &marks)?;
        if let (WaitsFor::Commit, Some(count)) = (waits_for, marks.half_batch) {
            let inside = self.transactions.check_half_batch(header, count, ask.body)?;
            self.charge_keys(ask, &inside)?;
        }
        self.charge_keys(ask, &keys)?;

        let queue_id = marks.priority_queue(topic.write_queues).unwrap_or(queue_id);
        let own = rewrite::own_properties(header.properties.as_bytes(), &marks);
        let extra = rewrite::extra_properties(ask.peer, header, &marks, waits_for, queue_id);
        let record = NewRecord {
            properties: [&own, self.added.behind(&own, &marks), extra.as_bytes()],
            ..self.record(ask, header, waits_for.place(&header.topic, queue_id), ask.body)
        };
        validate::properties_size(&record, waits_for.reserved_bytes())?;

        let appended = self.append(ask, header, &record, waits_for, &marks, answers)?;
        let bytes = appended.end_offset - appended.physical_offset;
        topic.traffic.receive(MessageType::of(&marks), bytes as u64);
        if ask.header.is_oneway() {
            return Ok(());
        }
        let answer = SendAnswer {
            physical_offset: Stored::At(appended.physical_offset),
            queue_id,
            queue_offset: appended.queue_offset,
            transaction_id: String::from_utf8_lossy(marks.unique_key.unwrap_or_default()),
            recall_handle: waits_for.due_ms().and_then(|due_ms| {
                self.due_times.recall_handle(&self.broker_name, &header.topic, &marks, &extra, due_ms)
            }),
        };
        self.acknowledge(ask, answer, appended.end_offset, marks.no_wait, answers);
        Ok(())
    }

    fn send_batch(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        topic: &Topic,
        queue_id: i32,
        answers: &mut Answers,
    ) -> Result<(), Refusal> {
        validate::body_size(ask.body.len(), self.message_size_bytes_max)?;
        let parts = validate::batch(header, ask.body)?;
        let (mut no_wait, mut keys) = (true, Keys::default());
        let (mut with_old_checksum, mut cleaned) = (Vec::new(), Vec::new());
        let mut records = Vec::with_capacity(parts.len());
        for part in &parts {
            let own = part.properties;
            let marks = properties::scan(own);
            validate::batch_part(&marks)?;
            keys.add(&marks, own.len() + part.body.len(), self.message_keys_max)?;
            no_wait &= marks.no_wait;
            let record = NewRecord {
                flag: part.flag,
                properties: [own, self.added.behind(own, &marks), &[]],
                ..self.record(ask, header, (&header.topic, queue_id), part.body)
            };
            validate::properties_size(&record, 0)?;
            if marks.old_checksum {
                with_old_checksum.push(records.len());
                cleaned.push(rewrite::without_old_checksum(own, &marks));
            }
            records.push(record);
        }
        for (at, own) in with_old_checksum.into_iter().zip(&cleaned) {
            records[at].properties = [own, self.added.behind(own, &properties::scan(own)), &[]];
        }
        keys.check_batch(self.message_keys_max)?;
        self.charge_keys(ask, &keys)?;

        let appended = self.append_batch(ask, &records, answers)?;
        let bytes = appended.end_offset - appended.first.physical_offset;
        topic.traffic.receive_batch(MessageType::Normal, records.len() as u64, bytes as u64);
        if ask.header.is_oneway() {
            return Ok(());
        }
        let answer = SendAnswer {
            physical_offset: Stored::AllAt(appended.physical_offsets),
            queue_id,
            queue_offset: appended.first.queue_offset,
            transaction_id: Cow::Borrowed(""),
            recall_handle: None,
        };
        self.acknowledge(ask, answer, appended.end_offset, no_wait, answers);
        Ok(())
    }

    fn charge_keys(&self, ask: &Ask<'_>, keys: &Keys) -> Result<(), Refusal> {
        if keys.unpaid() == 0 {
            return Ok(());
        }
        self.key_budget.charge(ask.peer.remote.ip(), keys, self.flow.now_ns())
    }

    /// Decides what the message waits for. The delay of a half message begins with its commit, and a dead letter waits for a
    /// person, not for a time.
    fn waits_for(&self, header: &SendHeader<'_>, marks: &Marks<'_>) -> Result<WaitsFor, Refusal> {
        let is_dead_letter = header.topic.starts_with(DEAD_LETTER_PREFIX);
        let due_ms = if is_dead_letter { None } else { self.due_times.due_ms(marks)? };
        if rewrite::is_half(header, marks) {
            return Ok(WaitsFor::Commit);
        }
        let level = if is_dead_letter { None } else { self.delay_levels.level(marks.delay_level) };
        Ok(match (level, due_ms) {
            (Some(level), _) => WaitsFor::DelayLevel(level),
            (None, Some(due_ms)) => WaitsFor::DueTime(due_ms),
            (None, None) => WaitsFor::Nothing,
        })
    }

    /// Counts a message of a topic that a group gives up.
    pub(super) fn count_dead_letter(&self, dead_letter_topic: &str, topic: &str) {
        let policy = self.policy.read();
        let group = dead_letter_topic.strip_prefix(DEAD_LETTER_PREFIX).and_then(|group| policy.group(group));
        if let (Some(group), Some(topic)) = (group, policy.topic(topic)) {
            if let Some(counted) = group.traffic.of(&group.name, &topic.name) {
                counted.dead_letters.add(1);
            }
        }
    }

    fn acknowledge(
        &self,
        ask: &Ask<'_>,
        answer: SendAnswer<'_>,
        end_offset: i64,
        no_wait: bool,
        answers: &mut Answers,
    ) {
        if no_wait || self.store.is_confirmed(end_offset) {
            answers.add_sent(ask, &self.origin, &answer);
        } else {
            answers.add_sent_when_confirmed(ask, &self.origin, answer, end_offset);
        }
    }
}

/// The topic that a message came from which a consumer sends to its retry topic.
fn retried_topic<'a>(header: &'a SendHeader<'_>) -> &'a str {
    let topic =
        find(header.properties.as_bytes(), "RETRY_TOPIC").and_then(|topic| std::str::from_utf8(topic).ok());
    topic.unwrap_or(&header.topic)
}
