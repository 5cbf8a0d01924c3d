//! From the message that a sender gave to the record that is stored: its topic, its queue and its properties.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metaq_store::{SCHEDULE_TOPIC, TIMER_TOPIC};
use metaq_wire::properties::separator;
use metaq_wire::{CHECKSUM_NAME, SendHeader};

use crate::net::peer::Peer;
use crate::policy::Snapshot;
use crate::send::properties::{self, Marks};
use crate::timer::due_time::TIMER_NAMES;
use crate::transaction::half::{CHECK_TIMES, COPY_NOTES};
use crate::transaction::open::HALF_TOPIC;

pub(crate) const RETRY_PREFIX: &str = "%RETRY%";
pub(crate) const DEAD_LETTER_PREFIX: &str = "%DLQ%";
/// The properties of a half message grow by this when it is checked.
const CHECK_PROPERTIES_BYTES: usize = 128;
/// The properties of a message that waits for its time grow by this when it is stored again.
const ROLL_PROPERTIES_BYTES: usize = 64;

/// The dead-letter topic for a consumer's re-send that was tried too often, nothing for any other message. None if the
/// group is unknown, because then its limit is, too.
pub fn dead_letter_topic(policy: &Snapshot, header: &SendHeader<'_>) -> Option<Option<String>> {
    let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) else {
        return Some(None);
    };
    let is_dead = policy.retries_exhausted(group, header.reconsume_times, header.max_reconsume_times)?;
    Some(is_dead.then(|| format!("{DEAD_LETTER_PREFIX}{group}")))
}

/// The reason for which consumers do not see a message yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    Nothing,
    /// From 1 on.
    DelayLevel(usize),
    /// Milliseconds since 1970.
    DueTime(i64),
    Commit,
}

impl WaitsFor {
    /// The topic and queue in which a message lies while it waits.
    pub fn place(self, topic: &str, queue_id: i32) -> (&str, i32) {
        match self {
            WaitsFor::Nothing => (topic, queue_id),
            WaitsFor::DelayLevel(level) => (SCHEDULE_TOPIC, level as i32 - 1),
            WaitsFor::DueTime(_) => (TIMER_TOPIC, 0),
            WaitsFor::Commit => (HALF_TOPIC, 0),
        }
    }

    pub fn due_ms(self) -> Option<i64> {
        match self {
            WaitsFor::DueTime(due_ms) => Some(due_ms),
            _ => None,
        }
    }

    /// Bytes of properties to leave free for those that the broker adds while the message waits.
    pub fn reserved_bytes(self) -> usize {
        match self {
            WaitsFor::Nothing | WaitsFor::DelayLevel(_) => 0,
            WaitsFor::DueTime(_) => ROLL_PROPERTIES_BYTES,
            WaitsFor::Commit => CHECK_PROPERTIES_BYTES,
        }
    }
}

/// Whether this is a half message. One that a consumer could not handle keeps the mark of its transaction, which has
/// long ended.
pub fn is_half(header: &SendHeader<'_>, marks: &Marks<'_>) -> bool {
    marks.transactional && !(header.reconsume_times > 0 && marks.delay_level > 0)
}

/// The sender's properties without those that must not be stored.
pub fn own_properties<'a>(properties: &'a [u8], marks: &Marks<'_>) -> Cow<'a, [u8]> {
    let mut dropped: Vec<&str> = Vec::new();
    if marks.pop_check {
        dropped.push("POP_CK");
    }
    if marks.old_checksum {
        dropped.push(CHECKSUM_NAME);
    }
    if marks.copy_notes {
        dropped.extend(COPY_NOTES);
    }
    // A message that was committed after checks keeps their number, and may be sent on in another transaction.
    if marks.check_times && marks.transactional {
        dropped.push(CHECK_TIMES);
    }
    if marks.delay_level > 0 && marks.requested_time.is_asked() {
        dropped.extend(TIMER_NAMES);
    }
    if marks.priority.is_some() && !marks.has_priority() {
        dropped.push("_SYS_MSG_PRIORITY_");
    }
    if dropped.is_empty() {
        return Cow::Borrowed(properties);
    }
    Cow::Owned(properties::without(properties, &dropped))
}

/// The properties of a message in a batch without the checksum of another record.
pub fn without_old_checksum<'a>(properties: &'a [u8], marks: &Marks<'_>) -> Cow<'a, [u8]> {
    if !marks.old_checksum {
        return Cow::Borrowed(properties);
    }
    Cow::Owned(properties::without(properties, &[CHECKSUM_NAME]))
}

/// The properties that only this message needs: a key if it has none, and its queue after a wait. Most messages need none.
pub fn extra_properties(
    peer: &Peer,
    header: &SendHeader<'_>,
    marks: &Marks<'_>,
    waits_for: WaitsFor,
    queue_id: i32,
) -> String {
    let mut extra = String::new();
    if marks.unique_key.is_none() {
        push_unique_key(&mut extra, peer);
    }
    if waits_for != WaitsFor::Nothing {
        push(
            &mut extra,
            format_args!("\u{2}REAL_TOPIC\u{1}{}\u{2}REAL_QID\u{1}{queue_id}\u{2}", header.topic),
        );
    }
    if waits_for == WaitsFor::Commit {
        push_transaction(&mut extra, header, marks);
    }
    if let WaitsFor::DueTime(due_ms) = waits_for {
        push(&mut extra, format_args!("TIMER_OUT_MS\u{1}{due_ms}\u{2}"));
    }
    extra
}

/// Adds a unique key, so that the message can be traced and found.
fn push_unique_key(extra: &mut String, peer: &Peer) {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let counter = COUNTER.fetch_add(1, Relaxed);
    let (connection, moment) = (peer.id, (peer.now_ms() << 24) | (counter & 0xFF_FFFF));
    push(extra, format_args!("\u{2}UNIQ_KEY\u{1}{connection:016X}{moment:016X}\u{2}"));
}

/// Adds what a half message needs to be checked and ended.
fn push_transaction(extra: &mut String, header: &SendHeader<'_>, marks: &Marks<'_>) {
    if let Some(key) = marks.unique_key {
        push(extra, format_args!("__transactionId__\u{1}{}\u{2}", String::from_utf8_lossy(key)));
    }
    if !marks.names_producer_group {
        push(extra, format_args!("PGROUP\u{1}{}\u{2}", header.producer_group));
    }
}

fn push(extra: &mut String, text: std::fmt::Arguments<'_>) {
    let _cannot_fail = extra.write_fmt(text);
}

/// The properties that every stored message gets from its broker.
pub struct AddedProperties {
    /// After a separator.
    text: Vec<u8>,
}

impl AddedProperties {
    pub fn new(region: &str, cluster: &str) -> Self {
        let text =
            format!("\u{2}MSG_REGION\u{1}{region}\u{2}TRACE_ON\u{1}true\u{2}CLUSTER\u{1}{cluster}\u{2}");
        AddedProperties { text: text.into_bytes() }
    }

    /// These properties, to stand after the sender's `own`; nothing for a message that has them already.
    pub fn behind(&self, own: &[u8], marks: &Marks<'_>) -> &[u8] {
        if marks.already_added {
            return &[];
        }
        &self.text[1 - separator(own).len()..]
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }
}
