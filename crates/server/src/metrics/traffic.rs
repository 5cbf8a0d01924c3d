//! Messages that came in, by topic and kind, and messages that went out, by topic and group.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

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
    /// The offset after the last message that was handed out, by queue; -1 before the first.
    reached: Box<[AtomicI64]>,
}

impl Delivered {
    pub(crate) fn new(group: &str, topic: &str, queues: usize) -> Self {
        Delivered {
            group: group.into(),
            topic: topic.into(),
            messages: Count::default(),
            bytes: Count::default(),
            dead_letters: Count::default(),
            reached: (0..queues).map(|_| AtomicI64::new(-1)).collect(),
        }
    }

    /// The same counts with room for more queues.
    fn with_queues(&self, queues: usize) -> Self {
        let grown = Delivered {
            group: Arc::clone(&self.group),
            topic: Arc::clone(&self.topic),
            ..Delivered::new("", "", queues)
        };
        grown.messages.add(self.messages.get());
        grown.bytes.add(self.bytes.get());
        grown.dead_letters.add(self.dead_letters.get());
        for (to, from) in grown.reached.iter().zip(&self.reached) {
            to.store(from.load(Relaxed), Relaxed);
        }
        grown
    }

    /// Counts messages that were handed out of a queue, up to `next_offset`.
    pub fn hand_out(&self, queue_id: i32, next_offset: i64, messages: u64, bytes: u64) {
        self.messages.add(messages);
        self.bytes.add(bytes);
        if let Some(reached) = self.reached.get(queue_id as usize) {
            reached.store(next_offset, Relaxed);
        }
    }

    /// How far the queue was handed out; None before the first message.
    pub fn reached(&self, queue_id: i32) -> Option<i64> {
        let reached = self.reached.get(queue_id as usize)?.load(Relaxed);
        (reached >= 0).then_some(reached)
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

/// Pairs of a topic and a group that are counted, of all groups together. Clients choose how many there are.
#[derive(Default)]
pub struct Pairs {
    counted: AtomicUsize,
    max: usize,
}

impl Pairs {
    pub fn new(max: usize) -> Self {
        Pairs { counted: AtomicUsize::new(0), max }
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

    /// The counters of a topic that has this many queues. Beyond the limit of pairs they are nobody's.
    pub fn of(&self, group: &str, topic: &str, queues: i32) -> Arc<Delivered> {
        let known = self.by_topic.load().get_shared(topic).cloned();
        match known {
            Some(known) if known.reached.len() >= queues as usize => known,
            _ => self.add(group, topic, queues.max(0) as usize),
        }
    }

    #[cold]
    fn add(&self, group: &str, topic: &str, queues: usize) -> Arc<Delivered> {
        let _one_at_a_time = self.change.lock();
        let mut next = ByName::clone(&self.by_topic.load());
        let added = match next.get_shared(topic) {
            Some(known) if known.reached.len() >= queues => return Arc::clone(known),
            Some(known) => known.with_queues(queues),
            None if self.pairs.counted.load(Relaxed) >= self.pairs.max => {
                return Arc::new(Delivered::new(group, topic, 0));
            }
            None => {
                self.pairs.counted.fetch_add(1, Relaxed);
                self.own.fetch_add(1, Relaxed);
                Delivered::new(group, topic, queues)
            }
        };
        let added = Arc::new(added);
        next.insert_shared(Arc::clone(&added));
        self.by_topic.store(Arc::new(next));
        added
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
            self.pairs.counted.fetch_sub(1, Relaxed);
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
        self.pairs.counted.fetch_sub(self.own.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
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
    fn counters_outlive_new_queues() {
        let traffic = GroupTraffic::new(&Arc::new(Pairs::new(9)));
        traffic.of("g", "t", 2).hand_out(1, 7, 3, 300);
        let grown = traffic.of("g", "t", 4);
        assert_eq!(
            (grown.messages(), grown.bytes(), grown.reached(1), grown.reached(3)),
            (3, 300, Some(7), None)
        );
        assert!(Arc::ptr_eq(&grown, &traffic.of("g", "t", 3)));
    }

    #[test]
    fn pairs_beyond_the_limit_are_not_kept() {
        let pairs = Arc::new(Pairs::new(2));
        let (first, second) = (GroupTraffic::new(&pairs), GroupTraffic::new(&pairs));
        first.of("g", "a", 1);
        first.of("g", "a", 1);
        second.of("h", "a", 1);
        second.of("h", "b", 1).hand_out(0, 5, 1, 1);
        assert_eq!(second.all().len(), 1);
        first.forget("a");
        second.of("h", "b", 1);
        assert_eq!(second.all().len(), 2);
        drop(second);
        assert_eq!(pairs.counted.load(Relaxed), 0);
    }
}
