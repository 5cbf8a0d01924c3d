//! Messages that came in, by topic and kind, and messages that went out, by topic and group.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};

use crate::by_name::{ByName, Named};
use crate::net::counts::Count;
use crate::send::properties::Marks;

/// The upper bounds of the buckets of message sizes, in bytes.
pub const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// The kinds of messages that RocketMQ's metrics tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    Normal,
    Fifo,
    Delay,
    Transaction,
}

impl MessageType {
    pub const ALL: [MessageType; 4] =
        [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];

    pub fn of(marks: &Marks<'_>) -> Self {
        if marks.transactional {
            MessageType::Transaction
        } else if marks.is_ordered {
            MessageType::Fifo
        } else if marks.has_other_kind || marks.requested_time.is_asked() {
            MessageType::Delay
        } else {
            MessageType::Normal
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            MessageType::Normal => "normal",
            MessageType::Fifo => "fifo",
            MessageType::Delay => "delay",
            MessageType::Transaction => "transaction",
        }
    }
}

/// Counts what came into one topic since the plane was built.
#[derive(Default)]
pub struct TopicTraffic {
    received: [Received; 4],
    pub committed: Count,
    pub rolled_back: Count,
}

/// Counts the messages of one kind. A send of one message touches two counters.
#[derive(Default)]
struct Received {
    bytes: Count,
    /// Requests by the size of their messages, on average.
    sizes: [Count; SIZE_BOUNDS.len() + 1],
    /// Messages and bytes of batches beyond one message of average size.
    batched_messages: Count,
    batched_bytes: Count,
}

/// The sums of one kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSums {
    pub messages: u64,
    pub bytes: u64,
    pub sizes: [u64; SIZE_BOUNDS.len() + 1],
    pub size_sum: u64,
}

impl TopicTraffic {
    /// Counts one message with the bytes that it takes in the log.
    pub fn receive(&self, kind: MessageType, bytes: u64) {
        let received = &self.received[kind as usize];
        received.bytes.add(bytes);
        received.sizes[size_place(bytes)].add(1);
    }

    /// Counts a request that brought several messages.
    pub fn receive_batch(&self, kind: MessageType, messages: u64, bytes: u64) {
        let average = bytes / messages.max(1);
        let received = &self.received[kind as usize];
        received.bytes.add(bytes);
        received.sizes[size_place(average)].add(1);
        received.batched_messages.add(messages.saturating_sub(1));
        received.batched_bytes.add(bytes - average);
    }

    pub fn sums(&self, kind: MessageType) -> ReceivedSums {
        let received = &self.received[kind as usize];
        let sizes: [u64; SIZE_BOUNDS.len() + 1] = std::array::from_fn(|place| received.sizes[place].get());
        let bytes = received.bytes.get();
        ReceivedSums {
            messages: sizes.iter().sum::<u64>() + received.batched_messages.get(),
            bytes,
            sizes,
            size_sum: bytes.saturating_sub(received.batched_bytes.get()),
        }
    }
}

impl fmt::Debug for TopicTraffic {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("TopicTraffic")
    }
}

fn size_place(bytes: u64) -> usize {
    SIZE_BOUNDS.iter().position(|bound| bytes <= *bound).unwrap_or(SIZE_BOUNDS.len())
}

/// Counts what one group got of one topic since the plane was built.
pub struct Delivered {
    pub group: Arc<str>,
    pub topic: Arc<str>,
    messages: Count,
    bytes: Count,
    pub dead_letters: Count,
    /// The offset after the last message that was handed out, of those queues that gave any. A topic may have ten
    /// thousand queues, so those that gave nothing take no room.
    reached: RwLock<Reached>,
    limits: Arc<Pairs>,
}

type Reached = HashMap<i32, AtomicI64, RandomState>;

impl Delivered {
    fn new(group: &str, topic: &str, limits: &Arc<Pairs>) -> Self {
        Delivered {
            group: group.into(),
            topic: topic.into(),
            messages: Count::default(),
            bytes: Count::default(),
            dead_letters: Count::default(),
            reached: RwLock::default(),
            limits: Arc::clone(limits),
        }
    }

    /// Counts messages that were handed out of a queue, up to `next_offset`.
    pub fn hand_out(&self, queue_id: i32, next_offset: i64, messages: u64, bytes: u64) {
        self.messages.add(messages);
        self.bytes.add(bytes);
        match self.reached.read().get(&queue_id) {
            Some(reached) => return reached.store(next_offset, Relaxed),
            None if !self.limits.queues.has_room() => return,
            None => {}
        }
        self.reach_first(queue_id, next_offset);
    }

    #[cold]
    fn reach_first(&self, queue_id: i32, next_offset: i64) {
        let mut reached = self.reached.write();
        if let Some(known) = reached.get(&queue_id) {
            known.store(next_offset, Relaxed);
        } else if self.limits.queues.take() {
            reached.insert(queue_id, AtomicI64::new(next_offset));
        }
    }

    /// How far the queue was handed out; None before the first message, and beyond the limit of queues.
    pub fn reached(&self, queue_id: i32) -> Option<i64> {
        self.reached.read().get(&queue_id).map(|reached| reached.load(Relaxed))
    }

    /// The queues that gave messages, each with the offset after its last one; no more than `queues_max`.
    pub fn reached_queues(&self, queues_max: usize) -> Vec<(i32, i64)> {
        let reached = self.reached.read();
        reached.iter().take(queues_max).map(|(queue_id, next)| (*queue_id, next.load(Relaxed))).collect()
    }

    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

impl Named for Delivered {
    fn name(&self) -> &str {
        &self.topic
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        self.limits.queues.give_back(self.reached.get_mut().len());
    }
}

/// A number of things that are kept, and its limit.
#[derive(Default)]
struct Bounded {
    kept: AtomicUsize,
    max: usize,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Bounded { kept: AtomicUsize::new(0), max }
    }

    fn has_room(&self) -> bool {
        self.kept.load(Relaxed) < self.max
    }

    /// Counts one more, if there is room.
    fn take(&self) -> bool {
        self.kept.fetch_update(Relaxed, Relaxed, |kept| (kept < self.max).then_some(kept + 1)).is_ok()
    }

    fn give_back(&self, count: usize) {
        self.kept.fetch_sub(count, Relaxed);
    }
}

/// Counts all groups together: their pairs of a topic and a group, and the queues whose progress the pairs keep. Clients
/// choose how many there are.
#[derive(Default)]
pub struct Pairs {
    pairs: Bounded,
    queues: Bounded,
}

impl Pairs {
    pub fn new(pairs_max: usize, queues_max: usize) -> Self {
        Pairs { pairs: Bounded::new(pairs_max), queues: Bounded::new(queues_max) }
    }

    pub fn queues_kept(&self) -> usize {
        self.queues.kept.load(Relaxed)
    }
}

/// Counts what one group got, by topic.
#[derive(Default)]
pub struct GroupTraffic {
    pairs: Arc<Pairs>,
    by_topic: ArcSwap<ByName<Delivered>>,
    change: Mutex<()>,
    own: AtomicUsize,
}

impl GroupTraffic {
    pub fn new(pairs: &Arc<Pairs>) -> Self {
        GroupTraffic {
            pairs: Arc::clone(pairs),
            by_topic: ArcSwap::default(),
            change: Mutex::default(),
            own: AtomicUsize::new(0),
        }
    }

    /// The counters of a topic, which begin with the first message or dead letter; None beyond the limit of pairs. A pull
    /// that finds nothing must leave nothing, so do not ask for them before.
    pub fn of(&self, group: &str, topic: &str) -> Option<Arc<Delivered>> {
        self.find(topic).or_else(|| self.add(group, topic))
    }

    #[cold]
    fn add(&self, group: &str, topic: &str) -> Option<Arc<Delivered>> {
        if !self.pairs.pairs.has_room() {
            return None;
        }
        let _one_at_a_time = self.change.lock();
        let mut next = ByName::clone(&self.by_topic.load());
        if let Some(known) = next.get_shared(topic) {
            return Some(Arc::clone(known));
        }
        if !self.pairs.pairs.take() {
            return None;
        }
        self.own.fetch_add(1, Relaxed);
        let added = Arc::new(Delivered::new(group, topic, &self.pairs));
        next.insert_shared(Arc::clone(&added));
        self.by_topic.store(Arc::new(next));
        Some(added)
    }

    /// The counters of all topics of which the group got something.
    pub fn all(&self) -> Vec<Arc<Delivered>> {
        self.by_topic.load().iter().cloned().collect()
    }

    pub fn find(&self, topic: &str) -> Option<Arc<Delivered>> {
        self.by_topic.load().get_shared(topic).cloned()
    }

    /// Forgets a topic that is gone.
    pub fn forget(&self, topic: &str) {
        let _one_at_a_time = self.change.lock();
        let mut next = ByName::clone(&self.by_topic.load());
        if next.get_shared(topic).is_some() {
            next.remove(topic);
            self.by_topic.store(Arc::new(next));
            self.own.fetch_sub(1, Relaxed);
            self.pairs.pairs.give_back(1);
        }
    }
}

impl fmt::Debug for GroupTraffic {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("GroupTraffic")
    }
}

impl Drop for GroupTraffic {
    fn drop(&mut self) {
        self.pairs.pairs.give_back(self.own.load(Relaxed));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_as_one_request_of_average_size() {
        let traffic = TopicTraffic::default();
        traffic.receive(MessageType::Normal, 100);
        traffic.receive_batch(MessageType::Normal, 4, 8_000);
        let sums = traffic.sums(MessageType::Normal);
        assert_eq!((sums.messages, sums.bytes), (5, 8_100));
        assert_eq!(sums.sizes, [1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(sums.size_sum, 2_100);
        assert_eq!(traffic.sums(MessageType::Fifo).messages, 0);
    }

    #[test]
    fn a_message_as_large_as_a_bound_is_within_it() {
        assert_eq!([1_024, 1_025, 4 << 20, (4 << 20) + 1].map(size_place), [0, 1, 5, 6]);
    }

    #[test]
    fn kept_places_follow_the_queues_that_were_handed_out() {
        let pairs = Arc::new(Pairs::new(100, 10_000));
        let groups: Vec<GroupTraffic> = (0..100).map(|_| GroupTraffic::new(&pairs)).collect();
        for (number, group) in groups.iter().enumerate() {
            let delivered = group.of("g", "t").unwrap();
            assert_eq!(pairs.queues_kept(), 2 * number, "a pair has no places of its own");
            for next_offset in 1..4 {
                delivered.hand_out(9_999, next_offset, 1, 10);
                delivered.hand_out(0, next_offset + 10, 1, 10);
            }
            assert_eq!([0, 1, 9_999].map(|queue| delivered.reached(queue)), [Some(13), None, Some(3)]);
            assert_eq!((delivered.messages(), delivered.bytes()), (6, 60));
        }
        assert_eq!(pairs.queues_kept(), 200);
        groups[0].forget("t");
        assert_eq!(pairs.queues_kept(), 198);
        drop(groups);
        assert_eq!(pairs.queues_kept(), 0);
    }

    #[test]
    fn queues_beyond_the_limit_are_counted_without_their_places() {
        let pairs = Arc::new(Pairs::new(9, 2));
        let traffic = GroupTraffic::new(&pairs);
        let delivered = traffic.of("g", "t").unwrap();
        for queue_id in 0..4 {
            delivered.hand_out(queue_id, 5, 1, 10);
        }
        assert_eq!([0, 1, 2, 3].map(|queue| delivered.reached(queue)), [Some(5), Some(5), None, None]);
        assert_eq!((delivered.messages(), pairs.queues_kept()), (4, 2));
    }

    #[test]
    fn pairs_beyond_the_limit_are_not_kept() {
        let pairs = Arc::new(Pairs::new(2, 9));
        let (first, second) = (GroupTraffic::new(&pairs), GroupTraffic::new(&pairs));
        assert!(first.of("g", "a").is_some());
        assert!(Arc::ptr_eq(&first.of("g", "a").unwrap(), &first.find("a").unwrap()));
        assert!(second.of("h", "a").is_some());
        assert!(second.of("h", "b").is_none());
        assert_eq!(second.all().len(), 1);
        first.forget("a");
        assert!(second.of("h", "b").is_some());
        assert_eq!(second.all().len(), 2);
        drop(second);
        assert_eq!(pairs.pairs.kept.load(Relaxed), 0);
    }
}
