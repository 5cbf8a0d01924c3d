//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): from a frame to a record in the log.

use std::borrow::Cow;

use metaq_store::{Appended, SCHEDULE_TOPIC, StoreError, TIMER_TOPIC};
use metaq_wire::properties::{find, separator};
use metaq_wire::{NewRecord, SendHeader, batch_records, body_crc, layout};

use crate::broker::Broker;
use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::route::{Ask, Outcome};
use crate::policy::{PERMISSION_WRITE, Snapshot, Topic};
use crate::send::answer::{SendAnswer, Stored};
use crate::send::properties::{self, Marks};
use crate::timer::due_time::TIMER_NAMES;
use crate::timer::recall::handle;
use crate::transaction::half::COPY_NOTES;
use crate::transaction::open::{HALF_TOPIC, Kind, immunity_ms};

/// Longest property string of a stored message: its length is a signed 16-bit number on disk.
pub(crate) const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;
const PRODUCER_GROUP_BYTES_MAX: usize = 255;
/// Messages of one batch; the sum of their sizes is limited besides.
pub(crate) const BATCH_MESSAGES_MAX: usize = 32_768;
/// What a half message's properties grow by when it is checked.
const CHECK_PROPERTIES_BYTES: usize = 128;
/// What a waiting message's properties grow by when it is stored again.
const ROLL_PROPERTIES_BYTES: usize = 64;
const RETRY_PREFIX: &str = "%RETRY%";
const DEAD_LETTER_PREFIX: &str = "%DLQ%";

pub(crate) type Refusal = (i32, String);

impl Broker {
    pub(crate) fn handle_send(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let mut header = match SendHeader::scan(ask.header) {
            Ok(header) => header,
            Err(error) => return ask.refuse(answers, response_code::SYSTEM_ERROR, &error.to_string()),
        };
        let policy = self.policy.read();
        let Some(dead_letters) = dead_letter_topic(&policy, &header) else {
            return ask.unknown(
                answers,
                response_code::SUBSCRIPTION_GROUP_NOT_EXIST,
                "the retry topic's group",
                &header.topic,
            );
        };
        if let Some(dead_letters) = dead_letters {
            header.topic = Cow::Owned(dead_letters);
            header.queue_id = 0;
        }
        let Some(topic) = policy.topic(&header.topic) else {
            return ask.unknown(answers, response_code::TOPIC_NOT_EXIST, "topic", &header.topic);
        };
        let queue_id = match self.admit(topic, &header, policy.permission) {
            Ok(queue_id) => queue_id,
            Err((code, remark)) => return ask.refuse(answers, code, &remark),
        };
        let store = |answers: &mut Answers| {
            if header.batch {
                self.store_batch(ask, &header, queue_id, answers)
            } else {
                self.store_one(ask, &header, queue_id, topic.write_queues, answers)
            }
        };
        if let Some(limit) = &topic.send_limit {
            return self.send_within(limit, topic, ask, &header, answers, store);
        }
        match store(answers) {
            Ok(()) => Outcome::Done,
            Err((code, remark)) => ask.refuse(answers, code, &remark),
        }
    }

    /// May this message go to that topic and queue? The queue, where the sender left it open, is chosen here.
    fn admit(&self, topic: &Topic, header: &SendHeader<'_>, permission: u8) -> Result<i32, Refusal> {
        if permission & PERMISSION_WRITE == 0 {
            let remark = format!(
                "broker[{}] does not accept messages: its permission is {permission}",
                self.settings.name
            );
            return Err((response_code::NO_PERMISSION, remark));
        }
        if !topic.client_writable {
            let remark = format!("topic[{}] is a system topic: clients may not send to it", topic.name);
            return Err((response_code::NO_PERMISSION, remark));
        }
        if topic.permission & PERMISSION_WRITE == 0 {
            let remark =
                format!("topic[{}] is not writable: its permission is {}", topic.name, topic.permission);
            return Err((response_code::NO_PERMISSION, remark));
        }
        check_group(&header.producer_group)?;
        let queues = topic.write_queues.max(topic.read_queues);
        if header.queue_id >= queues {
            let remark = format!(
                "queue {} is outside topic[{}], which has {queues} queues",
                header.queue_id, topic.name
            );
            return Err((response_code::INVALID_PARAMETER, remark));
        }
        Ok(if header.queue_id < 0 { self.choose_queue(topic.write_queues) } else { header.queue_id })
    }

    fn store_one(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        queue_id: i32,
        write_queues: i32,
        answers: &mut Answers,
    ) -> Result<(), Refusal> {
        self.check_body(ask.body.len())?;
        let marks = properties::scan(header.properties.as_bytes());
        let due_ms = self.due_ms(header, &marks)?;
        let queue_id = marks.priority_queue(write_queues).unwrap_or(queue_id);
        let own = own_properties(header.properties.as_bytes(), &marks);
        let mut more = match marks.unique_key {
            Some(_) => String::new(),
            None => self.unique_key_property(ask),
        };
        // What nobody could handle waits for a person, not for a time.
        let asked_level = if header.topic.starts_with(DEAD_LETTER_PREFIX) { 0 } else { marks.delay_level };
        let is_half = is_half(header, &marks);
        if let Some(count) = marks.half_batch.filter(|_| is_half) {
            self.check_half_batch(header, count, ask.body)?;
        }
        // A half message begins to wait for its delay when it is committed.
        let level = if is_half { None } else { self.delays.level(asked_level) };
        let due_ms = due_ms.filter(|_| !is_half);
        if is_half || level.is_some() || due_ms.is_some() {
            more.push_str(&format!("\u{2}REAL_TOPIC\u{1}{}\u{2}REAL_QID\u{1}{queue_id}\u{2}", header.topic));
        }
        if is_half {
            push_transaction(&mut more, header, &marks);
        }
        if let Some(due_ms) = due_ms {
            more.push_str(&format!("TIMER_OUT_MS\u{1}{due_ms}\u{2}"));
        }
        let mut record = NewRecord {
            properties: [&own, self.added(&marks, &own), more.as_bytes()],
            ..self.record(ask, header, queue_id, ask.body)
        };
        if let Some(level) = level {
            // It waits in its level's queue, and its own topic sees it when the time has come.
            record.topic = SCHEDULE_TOPIC.as_bytes();
            record.queue_id = level as i32 - 1;
        }
        if due_ms.is_some() {
            record.topic = TIMER_TOPIC.as_bytes();
            record.queue_id = 0;
        }
        check_properties(&record, bytes_to_come(is_half, due_ms.is_some()))?;
        let appended = if is_half {
            record.topic = HALF_TOPIC.as_bytes();
            record.queue_id = 0;
            self.store_half(&record, &marks)?
        } else {
            self.store.append(&record).map_err(refusal)?
        };
        answers.note_appended();
        ask.peer.counts.messages_in.add(1);
        ask.peer.counts.bytes_in.add(ask.body.len() as u64);
        if ask.header.is_oneway() {
            return Ok(());
        }
        let answer = SendAnswer {
            physical_offset: Stored::At(appended.physical_offset),
            queue_id,
            queue_offset: appended.queue_offset,
            transaction_id: String::from_utf8_lossy(marks.unique_key.unwrap_or_default()),
            recall_handle: due_ms.and_then(|due_ms| self.recall_handle(header, &marks, &more, due_ms)),
        };
        self.acknowledge(ask, answer, appended.end_offset, marks.no_wait, answers);
        Ok(())
    }

    fn store_half(&self, record: &NewRecord<'_>, marks: &Marks<'_>) -> Result<Appended, Refusal> {
        let kind = Kind { immunity_ms: immunity_ms(marks.immunity), is_batch: marks.half_batch.is_some() };
        let appended = self.append_half(record, kind).map_err(refusal)?;
        appended.ok_or_else(|| {
            let limit = self.settings.transactions_open_max;
            let remark = format!("[OVERLOAD] {limit} transactions are open already (transactions_open_max)");
            (response_code::SYSTEM_BUSY, remark)
        })
    }

    fn store_batch(
        &self,
        ask: &Ask<'_>,
        header: &SendHeader<'_>,
        queue_id: i32,
        answers: &mut Answers,
    ) -> Result<(), Refusal> {
        self.check_body(ask.body.len())?;
        if header.topic.starts_with(RETRY_PREFIX) {
            let remark = "a batch may not go to a retry topic: send its messages one by one";
            return Err((response_code::MESSAGE_ILLEGAL, remark.to_string()));
        }
        let mut parts = Vec::with_capacity(64);
        for part in batch_records(ask.body) {
            let part = part.map_err(|error| (response_code::MESSAGE_ILLEGAL, error.to_string()))?;
            if parts.len() == BATCH_MESSAGES_MAX {
                return Err((
                    response_code::MESSAGE_ILLEGAL,
                    format!("a batch holds at most {BATCH_MESSAGES_MAX} messages"),
                ));
            }
            parts.push(part);
        }
        if parts.is_empty() {
            return Err((response_code::MESSAGE_ILLEGAL, "the batch holds no message".to_string()));
        }
        let mut no_wait = true;
        let mut records = Vec::with_capacity(parts.len());
        for part in &parts {
            let own = part.properties;
            let marks = properties::scan(own);
            if marks.delay_level > 0 || marks.transactional || marks.timing.is_asked() {
                let remark =
                    "a batch may not be delayed or part of a transaction: send its messages one by one";
                return Err((response_code::MESSAGE_ILLEGAL, remark.to_string()));
            }
            no_wait &= marks.no_wait;
            let record = NewRecord {
                flag: part.flag,
                properties: [own, self.added(&marks, own), &[]],
                ..self.record(ask, header, queue_id, part.body)
            };
            check_properties(&record, 0)?;
            records.push(record);
        }
        let appended = self.store.append_batch(&records).map_err(refusal)?;
        answers.note_appended();
        ask.peer.counts.messages_in.add(records.len() as u64);
        ask.peer.counts.bytes_in.add(ask.body.len() as u64);
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

    fn record<'a>(
        &self,
        ask: &Ask<'_>,
        header: &'a SendHeader<'_>,
        queue_id: i32,
        body: &'a [u8],
    ) -> NewRecord<'a> {
        NewRecord {
            topic: header.topic.as_bytes(),
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

    fn check_body(&self, size: usize) -> Result<(), Refusal> {
        let limit = self.settings.message_size_bytes_max;
        if size > limit {
            let remark = format!(
                "the message body has {size} bytes; this broker takes at most {limit} (message_size_bytes_max)"
            );
            return Err((response_code::MESSAGE_ILLEGAL, remark));
        }
        Ok(())
    }

    /// When the message is to be delivered, where its sender names a moment to come. A delay level wins over it, and
    /// what nobody could handle waits for a person.
    pub(crate) fn due_ms(&self, header: &SendHeader<'_>, marks: &Marks<'_>) -> Result<Option<i64>, Refusal> {
        let timing = &marks.timing;
        if !timing.is_asked() || marks.delay_level > 0 || header.topic.starts_with(DEAD_LETTER_PREFIX) {
            return Ok(None);
        }
        if timing.recalls.is_some() && !self.settings.recall_messages {
            let remark = "this broker does not let messages be recalled (recall_messages)";
            return Err((response_code::NO_PERMISSION, remark.to_string()));
        }
        let now_ms = self.store.clock().now_ms();
        let due_ms = timing.due_ms(now_ms, self.settings.timer_max_delay_ms);
        due_ms.map_err(|remark| (response_code::MESSAGE_ILLEGAL, remark))
    }

    /// None for what cannot be recalled by a handle: retries, recalls themselves, and a key that would not come back
    /// from it.
    fn recall_handle(
        &self,
        header: &SendHeader<'_>,
        marks: &Marks<'_>,
        more: &str,
        due_ms: i64,
    ) -> Option<String> {
        let key = marks.unique_key.or_else(|| find(more.as_bytes(), "UNIQ_KEY"))?;
        let key = std::str::from_utf8(key).ok()?;
        let is_retry = header.topic.starts_with(RETRY_PREFIX);
        let is_wanted = self.settings.recall_messages && marks.timing.recalls.is_none() && !is_retry;
        (is_wanted && !key.contains(' ')).then(|| handle(&header.topic, &self.settings.name, due_ms, key))
    }

    /// The broker's properties, led by a separator only where the sender's string lacks its last one.
    pub(crate) fn added<'a>(&'a self, marks: &Marks<'_>, own: &[u8]) -> &'a [u8] {
        if marks.already_added {
            return &[];
        }
        &self.added_properties[1 - separator(own).len()..]
    }

    /// A message without a unique key gets one, so that it can be traced and found.
    fn unique_key_property(&self, ask: &Ask<'_>) -> String {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
        format!(
            "\u{2}UNIQ_KEY\u{1}{:016X}{:016X}\u{2}",
            ask.peer.id,
            ask.peer.now_ms() << 24 | counter & 0xFF_FFFF
        )
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

/// Where a consumer's re-send to its retry topic goes once it has tried often enough. None where the group is not
/// known, so that nothing is known about its limit either.
fn dead_letter_topic(policy: &Snapshot, header: &SendHeader<'_>) -> Option<Option<String>> {
    let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) else {
        return Some(None);
    };
    let times_max = match header.max_reconsume_times {
        Some(times_max) => times_max,
        None => policy.group(group)?.retry_times_max,
    };
    Some((header.reconsume_times >= times_max).then(|| format!("{DEAD_LETTER_PREFIX}{group}")))
}

/// The names that clients themselves allow for a group of producers.
fn check_group(group: &str) -> Result<(), Refusal> {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-');
    if group.is_empty() || group.len() > PRODUCER_GROUP_BYTES_MAX || !group.bytes().all(is_sound) {
        let remark = format!(
            "the producer group must have 1 to {PRODUCER_GROUP_BYTES_MAX} letters, digits or any of % | _ -"
        );
        return Err((response_code::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

/// A message that a consumer could not handle keeps the mark of its transaction, which has long ended.
fn is_half(header: &SendHeader<'_>, marks: &Marks<'_>) -> bool {
    marks.transactional && !(header.reconsume_times > 0 && marks.delay_level > 0)
}

/// What makes sure that a half message can be asked for and ended.
fn push_transaction(more: &mut String, header: &SendHeader<'_>, marks: &Marks<'_>) {
    if let Some(key) = marks.unique_key {
        more.push_str(&format!("__transactionId__\u{1}{}\u{2}", String::from_utf8_lossy(key)));
    }
    if !marks.names_producer_group {
        more.push_str(&format!("PGROUP\u{1}{}\u{2}", header.producer_group));
    }
}

fn own_properties<'a>(properties: &'a [u8], marks: &Marks<'_>) -> Cow<'a, [u8]> {
    let mut own = Cow::Borrowed(properties);
    if marks.pop_check {
        own = Cow::Owned(properties::without(&own, "POP_CK"));
    }
    if marks.copy_notes {
        for name in COPY_NOTES {
            own = Cow::Owned(properties::without(&own, name));
        }
    }
    if marks.delay_level > 0 && marks.timing.is_asked() {
        for name in TIMER_NAMES {
            own = Cow::Owned(properties::without(&own, name));
        }
    }
    if marks.priority.is_some() && !marks.has_priority() {
        own = Cow::Owned(properties::without(&own, "_SYS_MSG_PRIORITY_"));
    }
    own
}

/// What the properties must leave free for what the broker adds later.
fn bytes_to_come(is_half: bool, is_waiting: bool) -> usize {
    match (is_half, is_waiting) {
        (true, _) => CHECK_PROPERTIES_BYTES,
        (_, true) => ROLL_PROPERTIES_BYTES,
        _ => 0,
    }
}

/// Whether the properties leave so many bytes free.
fn check_properties(record: &NewRecord<'_>, free: usize) -> Result<(), Refusal> {
    let size: usize = record.properties.iter().map(|part| part.len()).sum();
    let limit = PROPERTIES_BYTES_MAX - free;
    if size > limit {
        let remark = format!("the message's properties have {size} bytes; at most {limit} can be stored");
        return Err((response_code::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

pub(crate) fn refusal(error: StoreError) -> Refusal {
    let code = match error {
        StoreError::TooLarge { .. } => response_code::MESSAGE_ILLEGAL,
        StoreError::Busy { .. } => response_code::SYSTEM_BUSY,
        _ => response_code::SERVICE_NOT_AVAILABLE,
    };
    (code, error.to_string())
}
