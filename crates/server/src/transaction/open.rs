//! The ledger of transactions: the open ones, and the outcome of those that ended last.
//!
//! A half message lies in queue 0 of the half topic, where no consumer looks. When its transaction ends, its queue offset
//! is written to the done topic. After a restart both topics together tell which transactions are open. Nothing here
//! touches the store: `half` stores half messages, `end` ends transactions.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::LazyLock;

use foldhash::fast::RandomState;
use metaq_wire::Record;

use crate::transaction::half_batch::HALF_BATCH;

pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const DONE_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// The group whose committed offsets are the first that matter in both topics.
pub const TRANSACTION_GROUP: &str = "CID_RMQ_SYS_TRANS";

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
}

/// The number of open transactions by the name of a group or a topic.
pub type OpenByName = HashMap<NameKey, usize, RandomState>;

/// Stands for the name of a producer group or a topic, of which there may be one for each of many transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameKey(u64);

impl NameKey {
    pub fn of(name: &[u8]) -> Self {
        // Random in each process, so that nobody can choose a name that counts as another's.
        static HASHING: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        NameKey(HASHING.hash_one(name))
    }
}

impl Kind {
    pub fn of(record: &Record<'_>) -> Self {
        let immunity_ms = immunity_ms(record.property("CHECK_IMMUNITY_TIME_IN_SECONDS"));
        let group = NameKey::of(record.property("PGROUP").unwrap_or_default());
        let topic = NameKey::of(record.property("REAL_TOPIC").unwrap_or_default());
        Kind { immunity_ms, is_batch: record.property(HALF_BATCH).is_some(), group, topic }
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
    /// Each turn stores the half messages that it takes again, and one that holds many is large. So a turn takes those only
    /// when their age has doubled: their driver may be away for a day, and finds them still there.
    fn is_wanted(&self, look: &Look) -> bool {
        let lain_ms = look.now_ms.saturating_sub(self.stored_ms);
        if self.kind.is_batch {
            // If it was stored once, both times are equal, unless the producer's clock is wrong.
            let age_ms = if self.before < 0 { 0 } else { self.stored_ms - self.since_ms };
            return lain_ms > self.patience_ms(look).max(look.renew_ms).max(age_ms);
        }
        !self.is_immune(look) || lain_ms > look.renew_ms
    }

    /// Whether it is too early to ask its producer.
    pub fn is_immune(&self, look: &Look) -> bool {
        look.now_ms.saturating_sub(self.since_ms) <= self.patience_ms(look)
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

fn count_out_of(open: &mut OpenByName, name: NameKey) {
    if let Entry::Occupied(mut open) = open.entry(name) {
        *open.get_mut() -= 1;
        if *open.get() == 0 {
            open.remove();
        }
    }
}

/// The open transactions, by queue offset of their half message, and the last outcomes.
#[derive(Default)]
pub struct Ledger {
    open_max: usize,
    open_per_group_max: usize,
    ends_max: usize,
    immunity_ms_max: i64,
    open: BTreeMap<i64, Half>,
    /// The number of open transactions of each producer group that has some.
    open_of_group: OpenByName,
    /// The same for each topic.
    open_of_topic: OpenByName,
    /// Former copies of open half messages, by which a late producer may still end them.
    moved: HashMap<i64, Moved, RandomState>,
    /// The last outcomes, one word each, indexed by the queue offset modulo `ends_max`.
    ends: Vec<i64>,
    /// Half messages that ended and are not in the done topic yet, in that order.
    pub unwritten: Vec<Done>,
    /// Commits of open half messages that were cut short.
    partial_commits: BTreeMap<i64, PartialCommit>,
    /// Records of the done topic that still matter: the queue offset, and the highest half message that it names.
    done: VecDeque<(i64, i64)>,
    next_half: i64,
    next_done: i64,
    /// The end of the last record that was appended for an end or a check.
    pub appended_end: i64,
}

impl Ledger {
    pub fn new(open_max: usize, open_per_group_max: usize, ends_max: usize, immunity_ms_max: i64) -> Self {
        let ends_max = ends_max.max(1);
        Ledger { open_max, open_per_group_max, ends_max, immunity_ms_max, ..Ledger::default() }
    }

    /// Whether this group may begin no further transaction.
    pub fn is_full(&self, group: NameKey) -> bool {
        self.open.len() >= self.open_max
            || self.open_of_group.get(&group).is_some_and(|open| *open >= self.open_per_group_max)
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub fn open_of_topic(&self) -> &OpenByName {
        &self.open_of_topic
    }

    pub fn begin_at(&mut self, half_offset: i64, done_offset: i64) {
        (self.next_half, self.next_done) = (half_offset, done_offset);
    }

    pub fn open(&mut self, queue_offset: i64, mut half: Half) {
        // Nobody may keep a transaction open for years: there is room for a limited number of them.
        half.kind.immunity_ms = half.kind.immunity_ms.min(self.immunity_ms_max);
        if let Some(known) = self.open.insert(queue_offset, half) {
            self.count_out(known);
        }
        *self.open_of_group.entry(half.kind.group).or_default() += 1;
        *self.open_of_topic.entry(half.kind.topic).or_default() += 1;
        self.see(queue_offset);
    }

    fn remove_open(&mut self, queue_offset: i64) -> Option<Half> {
        let half = self.open.remove(&queue_offset)?;
        self.count_out(half);
        Some(half)
    }

    fn count_out(&mut self, half: Half) {
        count_out_of(&mut self.open_of_group, half.kind.group);
        count_out_of(&mut self.open_of_topic, half.kind.topic);
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
        let Some(half) = self.remove_open(queue_offset) else {
            return;
        };
        self.partial_commits.remove(&queue_offset);
        self.note_unwritten(queue_offset, Fate::Ended(end));
        self.remember(queue_offset, end);
        let mut before = half.before;
        while let Some(moved) = self.moved.remove(&before) {
            self.remember(before, end);
            before = moved.before;
        }
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
                half.before = first;
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

    /// The oldest half messages that a turn of checks takes, at most `count_max`.
    pub fn due(&self, look: &Look) -> Vec<(i64, Half)> {
        let is_wanted = |half: &Half| half.stored_ms < look.stored_before_ms && half.is_wanted(look);
        let open = self.open.iter().filter(|(_, half)| is_wanted(half));
        open.take(look.count_max).map(|(queue_offset, half)| (*queue_offset, *half)).collect()
    }

    pub fn half(&self, queue_offset: i64) -> Option<Half> {
        self.open.get(&queue_offset).copied()
    }

    /// Notes that a record with ends was written to the done topic.
    pub fn note_done(&mut self, done_offset: i64, highest: i64, end_offset: i64) {
        self.done.push_back((done_offset, highest));
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

    fn note_unwritten(&mut self, queue_offset: i64, fate: Fate) {
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
mod tests {
    use super::*;

    const ENDS_MAX: usize = 64;
    const IMMUNITY_MS_MAX: i64 = 86_400_000;
    const PLAIN: Kind = Kind { immunity_ms: -1, is_batch: false, group: NameKey(1), topic: NameKey(2) };

    fn half(stored_ms: i64) -> Half {
        Half::new(stored_ms * 10, stored_ms, stored_ms, PLAIN)
    }

    fn ledger(count: i64) -> Ledger {
        let mut ledger = Ledger::new(10, 10, ENDS_MAX, IMMUNITY_MS_MAX);
        (0..count).for_each(|queue_offset| ledger.open(queue_offset, half(1000 + queue_offset)));
        ledger
    }

    fn look(now_ms: i64) -> Look {
        Look { now_ms, timeout_ms: 6_000, renew_ms: 60_000, stored_before_ms: now_ms, count_max: 10 }
    }

    #[test]
    fn the_kept_offset_moves_over_what_has_ended_and_no_further() {
        let mut ledger = ledger(3);
        assert_eq!(ledger.offsets(), (0, 0));
        ledger.end(1, End::Committed);
        ledger.note_done(0, 1, 100);
        assert_eq!(ledger.offsets(), (0, 0));
        ledger.end(0, End::RolledBack);
        ledger.note_done(1, 0, 200);
        assert_eq!(ledger.offsets(), (2, 2));
        ledger.end(2, End::Committed);
        assert_eq!(
            ledger.offsets(),
            (3, 2),
            "an end that is not written yet needs no record below the offset"
        );
        let unwritten: Vec<_> =
            ledger.unwritten.iter().map(|done| (done.queue_offset, done.log_end)).collect();
        assert_eq!((unwritten.as_slice(), ledger.appended_end), (&[(1, 0), (0, 100), (2, 200)][..], 200));
    }

    #[test]
    fn a_group_has_a_limit_of_its_own() {
        let mut ledger = Ledger::new(5, 2, ENDS_MAX, IMMUNITY_MS_MAX);
        let (one, other) = (NameKey::of(b"one"), NameKey::of(b"other"));
        let begin = |ledger: &mut Ledger, queue_offset: i64, group: NameKey| {
            ledger.open(queue_offset, Half::new(7, 1_000, 1_000, Kind { group, ..PLAIN }));
        };
        begin(&mut ledger, 0, one);
        begin(&mut ledger, 1, one);
        assert_eq!((ledger.is_full(one), ledger.is_full(other)), (true, false));
        ledger.replace(0, 2, Half::new(8, 1_000, 2_000, Kind { group: one, ..PLAIN }));
        assert!(ledger.is_full(one), "a copy takes the place of its original");
        ledger.end(2, End::Committed);
        assert!(!ledger.is_full(one));
        assert_eq!(ledger.open_of_topic().get(&PLAIN.topic), Some(&1), "one of the topic is still open");
        ledger.end(1, End::Committed);
        assert!(ledger.open_of_group.is_empty() && ledger.open_of_topic().is_empty());
    }

    #[test]
    fn a_kill_finds_what_is_stored_of_a_commit_that_was_cut_short() {
        let mut ledger = ledger(4);
        ledger.note_appended(500);
        ledger.end(0, End::Committed);
        ledger.note_partial_commit(1, 2, 120);
        ledger.note_partial_commit(1, 3, 700);
        ledger.note_appended(800);
        ledger.end(2, End::Committed);
        ledger.replace(1, 4, half(5_000));
        assert_eq!((ledger.stored_of(1), ledger.stored_of(4)), (0, 3));
        ledger.note_appended(900);
        ledger.end(3, End::RolledBack);
        ledger.end(4, End::Committed);
        assert_eq!(ledger.stored_of(4), 0);
        let log_ends: Vec<_> =
            ledger.unwritten.iter().map(|done| (done.queue_offset, done.log_end)).collect();
        assert_eq!(log_ends, [(0, 500), (2, 120), (1, 120), (3, 120), (4, 900)]);
        ledger.note_partial_commit(4, 3, 120);
        assert_eq!(ledger.stored_of(4), 0, "it has ended");
    }

    #[test]
    fn an_end_is_remembered_under_every_copy() {
        let mut ledger = ledger(2);
        ledger.replace(0, 2, half(5_000));
        ledger.replace(2, 3, half(6_000));
        assert_eq!(ledger.standing(0), Standing::Open(3));
        assert_eq!(ledger.standing(2), Standing::Open(3));
        ledger.end(3, End::Committed);
        for copy in [0, 2, 3] {
            assert_eq!(ledger.standing(copy), Standing::Ended(End::Committed));
        }
        assert!(ledger.moved.is_empty());
        assert_eq!(ledger.standing(1), Standing::Open(1));
        assert_eq!(ledger.standing(ENDS_MAX as i64 + 3), Standing::Forgotten);
        assert_eq!(ledger.offsets().0, 1);
    }

    #[test]
    fn after_a_restart_an_open_one_is_found_under_its_first_place() {
        let loaded = || {
            let mut ledger = ledger(0);
            ledger.replace(3, 5, half(6_000));
            ledger
        };
        let mut by_moves = loaded();
        by_moves.link(2, 3);
        by_moves.link(0, 2);
        by_moves.link(7, 9);
        by_moves.link_first(0, 5);
        let mut by_first = loaded();
        by_first.link_first(0, 5);
        by_first.link_first(5, 5);
        by_first.link_first(-1, 5);
        for (mut ledger, places) in [(by_moves, &[0, 2, 3, 5][..]), (by_first, &[0, 3, 5])] {
            assert!(places.iter().all(|place| ledger.standing(*place) == Standing::Open(5)));
            ledger.end(5, End::Committed);
            assert!(places.iter().all(|place| ledger.standing(*place) == Standing::Ended(End::Committed)));
            assert!(ledger.moved.is_empty());
        }
    }

    #[test]
    fn a_half_message_is_due_after_its_time_and_once_per_turn() {
        let mut ledger = ledger(1);
        ledger.open(1, Half::new(7, 1_000, 1_000, Kind { immunity_ms: 30_000, ..PLAIN }));
        ledger.open(2, Half::new(8, 99_999_999, 1_000, PLAIN));
        let places = |ledger: &Ledger, look: &Look| {
            ledger.due(look).into_iter().map(|(queue_offset, _)| queue_offset).collect::<Vec<_>>()
        };
        assert_eq!(places(&ledger, &look(7_000)), [0_i64; 0]);
        assert_eq!(places(&ledger, &look(7_001)), [0, 2], "a clock that runs ahead is not believed");
        assert_eq!(places(&ledger, &look(31_001)), [0, 1, 2]);
        assert_eq!(places(&ledger, &Look { count_max: 1, ..look(31_001) }), [0]);
        ledger.replace(0, 3, Half::new(9, 1_000, 40_000, PLAIN));
        assert_eq!(places(&ledger, &look(40_000)), [1, 2]);
    }

    #[test]
    fn a_half_message_is_immune_for_the_time_that_its_producer_or_the_broker_gives() {
        let immune = |immunity_ms, now_ms| {
            let kind = Kind { immunity_ms, ..PLAIN };
            Half::new(0, 1_000, 1_000, kind).is_immune(&look(now_ms))
        };
        assert!(immune(-1, 7_000) && !immune(-1, 7_001));
        assert!(immune(7_000, 8_000) && !immune(7_000, 8_001));
        assert!(!immune(0, 1_001));
    }

    #[test]
    fn no_producer_gets_more_immunity_than_the_limit() {
        let mut ledger = Ledger::new(10, 10, ENDS_MAX, 600_000);
        for (queue_offset, is_batch) in [(0, false), (1, true)] {
            let kind = Kind { immunity_ms: immunity_ms(Some(b"2147483647")), is_batch, ..PLAIN };
            ledger.open(queue_offset, Half::new(7, 1_000, 1_000, kind));
        }
        assert!(ledger.half(0).is_some_and(|half| half.is_immune(&look(601_000))));
        assert!(ledger.half(0).is_some_and(|half| !half.is_immune(&look(601_001))));
        assert_eq!(ledger.due(&look(601_001)).len(), 2, "one that holds many as well");
        ledger.replace(0, 2, Half::new(8, 1_000, 700_000, Kind { immunity_ms: i64::MAX, ..PLAIN }));
        assert!(ledger.half(2).is_some_and(|half| !half.is_immune(&look(700_000))), "a copy as well");
    }

    #[test]
    fn what_lies_at_one_place_for_long_is_due_for_a_copy() {
        let mut ledger = Ledger::new(10, 10, ENDS_MAX, IMMUNITY_MS_MAX);
        ledger.open(0, Half::new(7, 1_000, 1_000, Kind { immunity_ms: 3_600_000, ..PLAIN }));
        assert!(ledger.due(&look(61_000)).is_empty());
        assert_eq!(ledger.due(&look(61_001)).len(), 1);
    }

    #[test]
    fn one_that_holds_many_is_looked_at_when_its_age_has_doubled() {
        let mut ledger = Ledger::new(10, 10, ENDS_MAX, IMMUNITY_MS_MAX);
        let kind = Kind { immunity_ms: 10_000, is_batch: true, ..PLAIN };
        ledger.open(0, Half::new(7, 1_000, 1_000, kind));
        let looks = |ledger: &Ledger, from_ms: i64, until_ms: i64| {
            (from_ms..=until_ms).step_by(1_000).find(|now_ms| !ledger.due(&look(*now_ms + 1)).is_empty())
        };
        assert_eq!(looks(&ledger, 1_000, 900_000), Some(61_000));
        ledger.replace(0, 1, Half::new(8, 1_000, 61_000, kind));
        assert_eq!(looks(&ledger, 61_000, 900_000), Some(121_000));
        ledger.replace(1, 2, Half::new(9, 1_000, 121_000, kind));
        assert_eq!(looks(&ledger, 121_000, 900_000), Some(241_000));
        let mut ledger = Ledger::new(10, 10, ENDS_MAX, IMMUNITY_MS_MAX);
        ledger.open(0, Half::new(7, 1_000, 3_600_000, kind));
        assert_eq!(
            looks(&ledger, 3_600_000, 3_700_000),
            Some(3_660_000),
            "its producer's clock is an hour late"
        );
    }

    #[test]
    fn fates_come_back_from_their_text() {
        for fate in [Fate::Ended(End::Committed), Fate::Ended(End::GivenUp), Fate::MovedTo(77)] {
            assert_eq!(Fate::read(&fate.text()), Some(fate));
        }
        for text in ["", "0", "4", ">", ">x", "-1"] {
            assert_eq!(Fate::read(text), None, "{text}");
        }
    }

    #[test]
    fn immunity_times_as_properties_have_them() {
        assert_eq!(immunity_ms(Some(b"30")), 30_000);
        assert_eq!(immunity_ms(Some(b"0")), 0);
        assert_eq!(immunity_ms(Some(b"-1")), -1);
        assert_eq!(immunity_ms(Some(b"soon")), -1);
        assert_eq!(immunity_ms(Some(b"9223372036854775807")), i64::MAX);
        assert_eq!(immunity_ms(None), -1);
    }
}
