//! A batch: messages that share one request and its outcome.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_wire::{batch_records, properties};
use parking_lot::{Condvar, Mutex};

use crate::produce::ids::{IdTail, UniqueIds};

/// Property with the key that has chosen the queue of a message.
pub(crate) const SHARDING_KEY: &str = "__SHARDINGKEY";
/// Property of a half message: how many messages its broker unpacks from it on commit.
pub(crate) const HALF_BATCH: &str = "METAQ_HALF_BATCH";

/// A queue of a topic: the name of its broker, and its number there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BrokerQueue {
    pub broker: Arc<str>,
    pub queue_id: i32,
}

/// How the messages of a batch are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// As records of one request, one after the other.
    Together,
    /// One message as a request of its own, because brokers do not accept it in a batch.
    Alone { properties: String, system_flag: i32, flag: i32 },
}

/// The contents of a batch, known once it is closed.
#[derive(Debug)]
pub struct Contents {
    pub form: Form,
    pub ids: Box<[IdTail]>,
    /// Bytes that it occupies in the buffer.
    pub size_bytes: usize,
}

/// The outcome of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Stored(Stored),
    /// The reason is attached to the batch.
    Failed,
}

/// A broker's answer to a batch that it stored. The messages follow each other from `queue_offset` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub queue: BrokerQueue,
    pub queue_offset: i64,
    /// 0, or the code of a weaker success.
    pub code: i32,
    /// The producer accepts that code as success.
    pub is_accepted: bool,
    pub offset_ids: OffsetIds,
    pub recall_handle: Option<String>,
    pub transaction_id: Option<String>,
}

/// Offset ids, one for each message, as the broker joined them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetIds {
    joined: String,
    /// The length of each id if all have the same, as those of one broker do. Computed on first use.
    width: OnceLock<Option<usize>>,
}

impl OffsetIds {
    pub fn new(joined: String) -> Self {
        OffsetIds { joined, width: OnceLock::new() }
    }

    fn width(&self) -> Option<usize> {
        let bytes = self.joined.as_bytes();
        let width = bytes.iter().position(|byte| *byte == b',').unwrap_or(bytes.len());
        let commas = bytes.iter().filter(|byte| **byte == b',').count();
        let in_place = bytes.iter().skip(width).step_by(width + 1).filter(|byte| **byte == b',').count();
        let is_regular = commas == in_place && (bytes.len() + 1) == (commas + 1) * (width + 1);
        is_regular.then_some(width)
    }

    /// The offset id of the message with this number; empty if the broker returned none.
    pub fn get(&self, number: usize) -> &str {
        match self.width.get_or_init(|| self.width()) {
            &Some(width) => {
                let start = number.saturating_mul(width + 1);
                self.joined.get(start..start.saturating_add(width)).unwrap_or_default()
            }
            None => self.joined.split(',').nth(number).unwrap_or_default(),
        }
    }
}

/// A batch. `A` is what the owners of its messages attach to it; this crate never looks at that.
pub struct Batch<A> {
    pub id: u64,
    pub topic: Arc<str>,
    /// The only queue it may go to, if one was given.
    pub queue: Option<BrokerQueue>,
    pub(crate) lane: usize,
    pub(crate) epoch: u64,
    ids: Arc<UniqueIds>,
    contents: OnceLock<Contents>,
    made: Instant,
    begun: OnceLock<Instant>,
    body: Mutex<Bytes>,
    outcome: OnceLock<Outcome>,
    waiters: Mutex<Waiters<A>>,
    done: Condvar,
}

/// The lane that a batch comes from.
pub(crate) struct BatchOrigin {
    pub lane: usize,
    pub topic: Arc<str>,
    pub queue: Option<BrokerQueue>,
}

struct Waiters<A> {
    watched: bool,
    attached: A,
}

impl<A: Default> Batch<A> {
    pub(crate) fn new(id: u64, home: BatchOrigin, epoch: u64, ids: Arc<UniqueIds>) -> Self {
        Batch {
            id,
            topic: home.topic,
            queue: home.queue,
            lane: home.lane,
            epoch,
            ids,
            contents: OnceLock::new(),
            made: Instant::now(),
            begun: OnceLock::new(),
            body: Mutex::default(),
            outcome: OnceLock::new(),
            waiters: Mutex::new(Waiters { watched: false, attached: A::default() }),
            done: Condvar::new(),
        }
    }
}

impl<A> Batch<A> {
    /// Ends the filling.
    pub(crate) fn close(&self, contents: Contents, body: Bytes) {
        *self.body.lock() = body;
        // Only its lane closes it, once.
        let _once = self.contents.set(contents);
    }

    /// `None` while it is being filled.
    pub fn contents(&self) -> Option<&Contents> {
        self.contents.get()
    }

    pub fn count(&self) -> usize {
        self.contents().map_or(0, |contents| contents.ids.len())
    }

    /// The id of the message with this number; `None` if there is none or the batch is still being filled.
    pub fn message_id(&self, number: usize) -> Option<String> {
        let tail = self.contents()?.ids.get(number)?;
        Some(self.ids.text(*tail))
    }

    /// The body of its request; empty once the batch has an outcome.
    pub fn body(&self) -> Bytes {
        self.body.lock().clone()
    }

    /// The sharding key of the first message, if every message has one. Then the key has chosen the batch's queue.
    pub fn sharding_key(&self) -> Option<String> {
        let key_of = |properties: &[u8]| {
            let key = properties::find(properties, SHARDING_KEY)?;
            std::str::from_utf8(key).ok().map(str::to_owned)
        };
        let contents = self.contents()?;
        if let Form::Alone { properties, .. } = &contents.form {
            if properties::find(properties.as_bytes(), HALF_BATCH).is_none() {
                return key_of(properties.as_bytes());
            }
        }
        let body = self.body();
        let keys: Option<Vec<String>> =
            batch_records(&body).map(|record| key_of(record.ok()?.properties)).collect();
        keys?.into_iter().next()
    }

    /// Starts its clock: now, or at its creation if it waited behind batches that failed. So waiting for a slow broker
    /// costs no time, and all batches that wait for a broker that is gone expire together.
    pub(crate) fn begin(&self, since_made: bool) {
        let _first = self.begun.set(if since_made { self.made } else { Instant::now() });
    }

    /// The time since [`Batch::begin`].
    pub fn spent(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Waits up to `patience`; `true` if the batch has an outcome.
    pub fn wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now().checked_add(patience);
        let mut waiters = self.waiters.lock();
        while self.outcome.get().is_none() {
            let late = match deadline {
                Some(deadline) => self.done.wait_until(&mut waiters, deadline).timed_out(),
                None => {
                    self.done.wait(&mut waiters);
                    false
                }
            };
            if late {
                return self.outcome.get().is_some();
            }
        }
        true
    }

    /// Runs `look` on the attachment and on whether the batch has an outcome. `look` must not use the batch: its lock
    /// is held.
    pub fn with<R>(&self, look: impl FnOnce(&mut A, bool) -> R) -> R {
        let mut waiters = self.waiters.lock();
        look(&mut waiters.attached, self.outcome.get().is_some())
    }

    /// Attaches something whose owner wants to hear of the outcome; `false` if the batch already has one.
    pub fn watch(&self, attach: impl FnOnce(&mut A)) -> bool {
        let mut waiters = self.waiters.lock();
        if self.outcome.get().is_some() {
            return false;
        }
        attach(&mut waiters.attached);
        waiters.watched = true;
        true
    }

    /// Sets the outcome and returns whether somebody watches the batch; `None` if it already had one.
    pub(crate) fn finish(&self, outcome: Outcome) -> Option<bool> {
        let waiters = self.waiters.lock();
        self.outcome.set(outcome).ok()?;
        self.done.notify_all();
        let watched = waiters.watched;
        drop(waiters);
        *self.body.lock() = Bytes::new();
        Some(watched)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored() -> Stored {
        Stored {
            queue: BrokerQueue { broker: "b".into(), queue_id: 0 },
            queue_offset: 0,
            code: 0,
            is_accepted: true,
            offset_ids: OffsetIds::default(),
            recall_handle: None,
            transaction_id: None,
        }
    }

    proptest! {
        #[test]
        fn every_message_has_its_own_offset_id(ids in "[ab,é]{0,24}", number in 0..12_usize) {
            let found = OffsetIds::new(ids.clone());
            prop_assert_eq!(found.get(number), ids.split(',').nth(number).unwrap_or_default());
        }
    }

    #[test]
    fn ids_of_one_broker_are_cut_out_by_their_length() {
        let ids = OffsetIds::new("AB,CD,EF".to_owned());
        assert_eq!((ids.width(), ids.get(2), ids.get(3)), (Some(2), "EF", ""));
    }

    #[test]
    fn the_first_outcome_counts() {
        let batch: Batch<Vec<u8>> = Batch::new(
            1,
            BatchOrigin { lane: 0, topic: "t".into(), queue: None },
            0,
            Arc::new(UniqueIds::new(&[1], 0, 0)),
        );
        assert!(!batch.wait(Duration::from_millis(1)));
        assert!(batch.watch(|attached| attached.push(1)));
        assert_eq!(batch.finish(Outcome::Stored(stored())), Some(true));
        assert_eq!(batch.finish(Outcome::Failed), None);
        assert!(!batch.watch(|attached| attached.push(2)));
        assert!(batch.wait(Duration::MAX));
        assert_eq!(batch.with(|attached, done| (attached.clone(), done)), (vec![1], true));
    }
}
