//! The ledger of transactions: the open ones, and the outcome of those that ended last.
//!
//! A half message lies in queue 0 of the half topic, where no consumer looks. When its transaction ends, its queue offset
//! is written to the done topic. After a restart both topics together tell which transactions are open. Nothing here
//! touches the store: `half` stores half messages, `end` ends transactions.

use std::collections::{BTreeMap, HashMap, VecDeque};

use foldhash::fast::RandomState;
use metaq_wire::Record;

use crate::settings::TransactionSettings;
use crate::transaction::half_batch::HALF_BATCH;
use crate::transaction::schedule::{Schedule, Taken};
use crate::transaction::shares::{Full, NameKey, OpenByName, Shares};

pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const DONE_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// The group whose committed offsets are the first that matter in both topics.
pub const TRANSACTION_GROUP: &str = "CID_RMQ_SYS_TRANS";

/// Records of the done topic that are remembered one by one. Of further ones, that many neighbours are remembered as one:
/// a restart reads a few more of them.
const DONE_MAX: usize = 1_024;
const DONE_NEIGHBOURS: i64 = 256;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Committed = 1,
    RolledBack = 2,
    /// Checked too often or too old: the message lies in a topic for a person to look at.
    GivenUp = 3,
}

const ENDS: [End; 3] = [End::Committed, End::RolledBack, End::GivenUp];

/// The properties of a half message that decide when it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The time for which the producer asked not to be checked; negative if it did not.
    pub immunity_ms: i64,
    /// It holds many messages, and the decision about them may take long: see [`Half::is_wanted`].
    pub is_batch: bool,
    /// The producer group that began it.
    pub group: NameKey,
    /// The topic that its message is for.
    pub topic: NameKey,
    /// The address that it came from.
    pub address: NameKey,
    /// The size of its record.
    pub bytes: u32,
}

impl Kind {
    pub fn of(record: &Record<'_>) -> Self {
        let immunity_ms = immunity_ms(record.property("CHECK_IMMUNITY_TIME_IN_SECONDS"));
        let group = NameKey::of(record.property("PGROUP").unwrap_or_default());
        let topic = NameKey::of(record.property("REAL_TOPIC").unwrap_or_default());
        let address = NameKey::of_address(record.born_host.ip());
        let is_batch = record.property(HALF_BATCH).is_some();
        Kind { immunity_ms, is_batch, group, topic, address, bytes: record.size as u32 }
    }
}

/// A half message of an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    pub physical_offset: i64,
    /// When its transaction began, by the producer's clock unless that is obviously wrong.
    pub since_ms: i64,
    pub stored_ms: i64,
    pub kind: Kind,
    /// The queue offset of the copy that this one replaced; negative for none.
    before: i64,
}

impl Half {
    pub fn new(physical_offset: i64, born_ms: i64, stored_ms: i64, kind: Kind) -> Self {
        // A clock ahead of ours, or no time at all, must not delay the check for ever.
        let since_ms = if born_ms > 0 { born_ms.min(stored_ms) } else { stored_ms };
        Half { physical_offset, since_ms, stored_ms, kind, before: -1 }
    }

    pub fn of(record: &Record<'_>) -> Self {
        Half::new(
            record.physical_offset,
            record.born_timestamp_ms,
            record.store_timestamp_ms,
            Kind::of(record),
        )
    }

    /// The same transaction after its message was stored again.
    pub fn stored_again(self, physical_offset: i64, stored_ms: i64) -> Self {
        Half { physical_offset, stored_ms, ..self }
    }

    /// Whether a turn of checks takes it: its producer is to be asked, or its last copy is so old that it holds up
    /// everything after it.
    ///
    /// Each turn stores the half messages that it takes again. So a turn takes those that hold many, which are large, and
    /// those that are immune only when their age has doubled: a day makes ten copies of them, not hundreds. Their driver may
    /// be away for that long, and finds them still there.
    fn is_wanted(&self, look: &Look) -> bool {
        let lain_ms = look.now_ms.saturating_sub(self.stored_ms);
        let renew_ms = look.renew_ms.max(self.stored_age_ms());
        if self.kind.is_batch {
            return lain_ms > self.patience_ms(look).max(renew_ms);
        }
        !self.is_immune(look) || lain_ms > renew_ms
    }

    /// Whether it is too early to ask its producer.
    pub fn is_immune(&self, look: &Look) -> bool {
        look.now_ms.saturating_sub(self.since_ms) <= self.patience_ms(look)
    }

    /// The time from which a turn takes it: see [`is_wanted`](Self::is_wanted). A turn leaves out the copies that it has
    /// stored itself, so it is not before its last copy.
    pub(super) fn take_from_ms(&self, (timeout_ms, renew_ms): (i64, i64)) -> i64 {
        let patience_ms = if self.kind.immunity_ms < 0 { timeout_ms } else { self.kind.immunity_ms };
        let renewed_ms = |period_ms: i64| self.stored_ms.saturating_add(period_ms.max(self.stored_age_ms()));
        let wanted_ms = if self.kind.is_batch {
            renewed_ms(patience_ms.max(renew_ms))
        } else {
            self.since_ms.saturating_add(patience_ms).min(renewed_ms(renew_ms))
        };
        wanted_ms.max(self.stored_ms)
    }

    /// The time after which a turn of checks takes it.
    pub fn check_from_ms(&self, look: &Look) -> i64 {
        let patience_ms = self.patience_ms(look);
        if !self.kind.is_batch {
            return self.since_ms.saturating_add(patience_ms);
        }
        self.stored_ms.saturating_add(patience_ms.max(look.renew_ms).max(self.stored_age_ms()))
    }

    /// Its age when its last copy was stored.
    fn stored_age_ms(&self) -> i64 {
        // If it was stored once, both times are equal, unless the producer's clock is wrong.
        if self.before < 0 { 0 } else { self.stored_ms - self.since_ms }
    }

    fn patience_ms(&self, look: &Look) -> i64 {
        if self.kind.immunity_ms < 0 { look.timeout_ms } else { self.kind.immunity_ms }
    }
}

/// The immunity time of the property in milliseconds; negative if it is not a valid time.
pub fn immunity_ms(property: Option<&[u8]>) -> i64 {
    let seconds = property.and_then(|text| std::str::from_utf8(text).ok()?.trim().parse::<i64>().ok());
    seconds.filter(|seconds| *seconds >= 0).map_or(-1, |seconds| seconds.saturating_mul(1000))
}

/// The state of a half message's transaction.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// Open; its newest copy has this queue offset.
    Open(i64),
    Ended(End),
    /// Ended, too long ago to know how.
    Forgotten,
}

/// The end of one copy of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Ended(End),
    /// Replaced by the copy with this queue offset.
    MovedTo(i64),
}

/// A copy of a half message that no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub queue_offset: i64,
    pub fate: Fate,
    /// Every commit below this physical offset belongs to a transaction that has ended by then.
    pub log_end: i64,
}

impl Fate {
    /// The text in the done topic: `1` to `3`, or `>` and a queue offset.
    pub fn text(self) -> String {
        match self {
            Fate::Ended(end) => (end as i64).to_string(),
            Fate::MovedTo(copy) => format!(">{copy}"),
        }
    }

    pub fn read(text: &str) -> Option<Fate> {
        if let Some(copy) = text.strip_prefix('>') {
            return copy.parse().ok().map(Fate::MovedTo);
        }
        let number: i64 = text.parse().ok()?;
        ENDS.into_iter().find(|end| *end as i64 == number).map(Fate::Ended)
    }
}

/// A half message that was stored again: its copy, and the copy that it had replaced itself.
struct Moved {
    to: i64,
    before: i64,
}

/// A commit that was cut short: the number of messages that it stored, and where to look for them in the log.
struct PartialCommit {
    stored: usize,
    log_from: i64,
}

/// The open transactions, by queue offset of their half message, and the last outcomes.
#[derive(Default)]
pub struct Ledger {
    ends_max: usize,
    immunity_ms_max: i64,
    open: BTreeMap<i64, Half>,
    shares: Shares,
    schedule: Schedule,
    /// Former copies of open half messages, by which a late producer may still end them.
    moved: HashMap<i64, Moved, RandomState>,
    /// The last outcomes, one word each, indexed by the queue offset modulo `ends_max`.
    ends: Vec<i64>,
    /// Half messages that ended and are not in the done topic yet, in that order.
    pub unwritten: Vec<Done>,
    /// Commits of open half messages that were cut short.
    partial_commits: BTreeMap<i64, PartialCommit>,
    /// Records of the done topic that still matter: the queue offset, and the highest half message that it names. One
    /// open transaction keeps all that come after it.
    done: VecDeque<(i64, i64)>,
    next_half: i64,
    next_done: i64,
    /// The end of the last record that was appended for an end or a check.
    pub appended_end: i64,
}

impl Ledger {
    pub fn new(settings: &TransactionSettings) -> Self {
        let (ends_max, immunity_ms_max) = (settings.ended_kept.max(1), settings.immunity_ms_max);
        Ledger { ends_max, immunity_ms_max, shares: Shares::new(settings), ..Ledger::default() }
    }

    /// The limit that a further transaction of this kind would break.
    pub fn full(&self, kind: &Kind) -> Option<Full> {
        self.shares.full(kind)
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub fn open_in_group(&self, group: NameKey) -> usize {
        self.shares.open_in_group(group)
    }

    /// The open half messages from a queue offset on.
    pub fn open_from_offset(&self, queue_offset: i64) -> impl Iterator<Item = (&i64, &Half)> {
        self.open.range(queue_offset..)
    }

    pub fn open_of_topic(&self) -> &OpenByName {
        self.shares.open_of_topic()
    }

    pub fn begin_at(&mut self, half_offset: i64, done_offset: i64) {
        (self.next_half, self.next_done) = (half_offset, done_offset);
    }

    pub fn open(&mut self, queue_offset: i64, mut half: Half) {
        // Nobody may keep a transaction open for years: there is room for a limited number of them.
        half.kind.immunity_ms = half.kind.immunity_ms.min(self.immunity_ms_max);
        if let Some(known) = self.open.insert(queue_offset, half) {
            self.shares.remove(&known.kind);
            self.schedule.remove(queue_offset, &known);
        }
        self.shares.add(&half.kind);
        self.schedule.add(queue_offset, &half);
        self.see(queue_offset);
    }

    fn remove_open(&mut self, queue_offset: i64) -> Option<Half> {
        let half = self.open.remove(&queue_offset)?;
        self.shares.remove(&half.kind);
        self.schedule.remove(queue_offset, &half);
        Some(half)
    }

    /// Notes that the half queue reaches at least up to here.
    pub fn see(&mut self, queue_offset: i64) {
        self.next_half = self.next_half.max(queue_offset + 1);
    }

    pub fn standing(&self, queue_offset: i64) -> Standing {
        let mut newest = queue_offset;
        while let Some(moved) = self.moved.get(&newest) {
            newest = moved.to;
        }
        if self.open.contains_key(&newest) {
            return Standing::Open(newest);
        }
        match self.remembered(queue_offset) {
            Some(end) => Standing::Ended(end),
            None => Standing::Forgotten,
        }
    }

    /// Ends a transaction. Its queue offset goes to the done topic with the next ones.
    pub fn end(&mut self, queue_offset: i64, end: End) {
        if self.end_written(queue_offset, end) {
            self.note_unwritten(queue_offset, Fate::Ended(end));
        }
    }

    /// Ends a transaction whose end is in the done topic already; false if it is not open.
    pub fn end_written(&mut self, queue_offset: i64, end: End) -> bool {
        let Some(half) = self.remove_open(queue_offset) else {
            return false;
        };
        self.partial_commits.remove(&queue_offset);
        self.remember(queue_offset, end);
        let mut before = half.before;
        while let Some(moved) = self.moved.remove(&before) {
            self.remember(before, end);
            before = moved.before;
        }
        true
    }

    /// Replaces a half message by a copy at the queue's end.
    pub fn replace(&mut self, queue_offset: i64, copy_offset: i64, mut copy: Half) {
        let replaced = self.remove_open(queue_offset);
        if replaced.is_some() {
            self.note_unwritten(queue_offset, Fate::MovedTo(copy_offset));
        }
        let before = replaced.map_or(-1, |half| half.before);
        self.moved.insert(queue_offset, Moved { to: copy_offset, before });
        copy.before = queue_offset;
        self.open(copy_offset, copy);
        if let Some(partial) = self.partial_commits.remove(&queue_offset) {
            self.partial_commits.insert(copy_offset, partial);
        }
    }

    /// Notes that a commit was cut short after it had stored this many messages, after `log_from` in the log.
    pub fn note_partial_commit(&mut self, queue_offset: i64, stored: usize, log_from: i64) {
        if stored > 0 && self.open.contains_key(&queue_offset) {
            // A second try may come by a later copy, but the first one's messages lie before that.
            let log_from = self
                .partial_commits
                .get(&queue_offset)
                .map_or(log_from, |partial| partial.log_from.min(log_from));
            self.partial_commits.insert(queue_offset, PartialCommit { stored, log_from });
        }
    }

    /// The number of messages that a commit stored before it was cut short.
    pub fn stored_of(&self, queue_offset: i64) -> usize {
        self.partial_commits.get(&queue_offset).map_or(0, |partial| partial.stored)
    }

    /// After a restart: notes that `queue_offset` was replaced by `copy_offset`, itself a former copy of an open one.
    pub fn link(&mut self, queue_offset: i64, copy_offset: i64) {
        // Copies lie after the originals, so links that only lead forward cannot form a circle.
        if queue_offset < 0 || queue_offset >= copy_offset || self.moved.contains_key(&queue_offset) {
            return;
        }
        if let Some(copy) = self.moved.get_mut(&copy_offset).filter(|copy| copy.before < 0) {
            copy.before = queue_offset;
            self.moved.insert(queue_offset, Moved { to: copy_offset, before: -1 });
        }
    }

    /// The same for the very first copy, if the copies in between may be unknown.
    pub fn link_first(&mut self, first: i64, copy_offset: i64) {
        let Some(half) = self.open.get_mut(&copy_offset) else {
            return;
        };
        if half.before < 0 {
            if (0..copy_offset).contains(&first) && !self.moved.contains_key(&first) {
                self.schedule.remove(copy_offset, half);
                half.before = first;
                self.schedule.add(copy_offset, half);
                self.moved.insert(first, Moved { to: copy_offset, before: -1 });
            }
            return;
        }
        let mut oldest = half.before;
        while let Some(moved) = self.moved.get(&oldest).filter(|moved| moved.before >= 0) {
            oldest = moved.before;
        }
        self.link(first, oldest);
    }

    /// The half messages that a turn of checks takes, at most `count_max` and about `bytes_max`: those that have been due for
    /// longest, by queue offset. What an address has beyond its share waits for the next turn. The cost follows what is due,
    /// not what is open.
    pub fn due(&mut self, look: &Look, bytes_max: usize) -> Vec<(i64, Half)> {
        self.shares.begin_turn(look.stored_before_ms);
        let Ledger { open, shares, schedule, .. } = self;
        schedule.follow(look, open.iter());
        let (mut due, mut bytes) = (Vec::new(), 0);
        schedule.take_due(look, |queue_offset| {
            if due.len() >= look.count_max || bytes >= bytes_max {
                return Taken::Enough;
            }
            let Some(half) = open.get(&queue_offset) else { return Taken::GoOn };
            if half.stored_ms >= look.stored_before_ms || !half.is_wanted(look) {
                return Taken::GoOn;
            }
            if !shares.take(&half.kind) {
                return Taken::AddressIsFull;
            }
            bytes += half.kind.bytes as usize;
            due.push((queue_offset, *half));
            Taken::GoOn
        });
        due.sort_unstable_by_key(|(queue_offset, _)| *queue_offset);
        due
    }

    pub fn half(&self, queue_offset: i64) -> Option<Half> {
        self.open.get(&queue_offset).copied()
    }

    /// Notes that a record with ends was written to the done topic.
    pub fn note_done(&mut self, done_offset: i64, highest: i64, end_offset: i64) {
        let is_long = self.done.len() >= DONE_MAX;
        match self.done.back_mut() {
            Some((first, before)) if is_long && done_offset - *first < DONE_NEIGHBOURS => {
                *before = highest.max(*before);
            }
            _ => self.done.push_back((done_offset, highest)),
        }
        self.next_done = done_offset + 1;
        self.note_appended(end_offset);
    }

    pub fn note_appended(&mut self, end_offset: i64) {
        self.appended_end = self.appended_end.max(end_offset);
    }

    /// The first offsets that matter in the half topic and in the done topic: a restart begins there.
    pub fn offsets(&mut self) -> (i64, i64) {
        let half_offset = self.open.first_key_value().map_or(self.next_half, |(first, _)| *first);
        while self.done.front().is_some_and(|(_, highest)| *highest < half_offset) {
            self.done.pop_front();
        }
        (half_offset, self.done.front().map_or(self.next_done, |(done_offset, _)| *done_offset))
    }

    pub fn note_unwritten(&mut self, queue_offset: i64, fate: Fate) {
        // After a kill the messages of a commit that was cut short must be found again.
        let partial_from =
            self.partial_commits.values().map(|partial| partial.log_from).min().unwrap_or(i64::MAX);
        self.unwritten.push(Done { queue_offset, fate, log_end: self.appended_end.min(partial_from) });
    }

    /// The physical offset of the oldest open half message. No commit of an open transaction lies before it.
    pub fn open_from(&self) -> Option<i64> {
        self.open.values().map(|half| half.physical_offset).min()
    }

    pub fn remember(&mut self, queue_offset: i64, end: End) {
        if self.ends.is_empty() {
            self.ends = vec![0; self.ends_max];
        }
        let index = queue_offset as usize % self.ends_max;
        self.ends[index] = (queue_offset << 2) | end as i64;
    }

    fn remembered(&self, queue_offset: i64) -> Option<End> {
        let word = *self.ends.get(queue_offset as usize % self.ends_max)?;
        ENDS.into_iter().find(|end| word == ((queue_offset << 2) | *end as i64))
    }
}

/// The bounds of one turn of checks.
pub struct Look {
    pub now_ms: i64,
    pub timeout_ms: i64,
    pub renew_ms: i64,
    /// When the turn began. Copies that it has stored itself are left out.
    pub stored_before_ms: i64,
    pub count_max: usize,
}

#[cfg(test)]
mod tests;
