//! Messages that share a request and its fate.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::produce::ids::{IdTail, UniqueIds};

/// One queue of a topic: its broker's name and its number there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub broker: Arc<str>,
    pub queue_id: i32,
}

/// How the messages of a batch are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// As records of one request, laid out one after the other.
    Together,
    /// As a request of its own, since brokers take no such message in a batch.
    Alone { properties: String, system_flag: i32, flag: i32 },
}

/// What went into a batch, known once it is closed.
#[derive(Debug)]
pub struct Contents {
    pub form: Form,
    pub ids: Box<[IdTail]>,
    /// What it takes of the buffer.
    pub size_bytes: usize,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Stored(Stored),
    /// Why is told by what is attached to the batch.
    Failed,
}

/// Where a broker put the messages of a batch: one after the other from `queue_offset` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub place: Place,
    pub queue_offset: i64,
    /// 0, or the code of a lesser success.
    pub code: i32,
    /// The producer takes that for success.
    pub is_accepted: bool,
    pub offset_ids: OffsetIds,
    pub recall_handle: Option<String>,
    pub transaction_id: Option<String>,
}

/// Offset ids, one for each message, as the broker joined them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetIds {
    joined: String,
    /// Characters of each where all are equally long, as those of one broker are; looked at when it is needed.
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

    /// That of the message at this place in the batch; empty where the broker told none.
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

/// A batch. `A` is what those who wait for its messages attach to it; nothing here looks at that.
pub struct Batch<A> {
    pub id: u64,
    pub topic: Arc<str>,
    /// The queue it must go to, where there is one.
    pub queue: Option<Place>,
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
pub(crate) struct Home {
    pub lane: usize,
    pub topic: Arc<str>,
    pub queue: Option<Place>,
}

struct Waiters<A> {
    watched: bool,
    attached: A,
}

impl<A: Default> Batch<A> {
    pub(crate) fn new(id: u64, home: Home, epoch: u64, ids: Arc<UniqueIds>) -> Self {
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
    /// Nothing more comes to it.
    pub(crate) fn close(&self, contents: Contents, body: Bytes) {
        *self.body.lock() = body;
        // Only its lane closes it, and only once.
        let _once = self.contents.set(contents);
    }

    /// None while it is still being filled.
    pub fn contents(&self) -> Option<&Contents> {
        self.contents.get()
    }

    pub fn count(&self) -> usize {
        self.contents().map_or(0, |contents| contents.ids.len())
    }

    /// The id of the message at this place; None where there is none, or the batch is still being filled.
    pub fn message_id(&self, number: usize) -> Option<String> {
        let tail = self.contents()?.ids.get(number)?;
        Some(self.ids.text(*tail))
    }

    /// The body of its request; empty once it is done.
    pub fn body(&self) -> Bytes {
        self.body.lock().clone()
    }

    /// Its time begins: now, or where it stood behind others that failed, when it was made. Waiting behind a broker that
    /// is slow costs nothing; behind one that is gone, all that wait come to their end together.
    pub(crate) fn begin(&self, since_made: bool) {
        let _first = self.begun.set(if since_made { self.made } else { Instant::now() });
    }

    /// How much of its time has passed.
    pub fn spent(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Waits no longer than this; whether it is done.
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

    /// Looks at what is attached, and says whether the batch is done. Nothing may be called back from inside.
    pub fn with<R>(&self, look: impl FnOnce(&mut A, bool) -> R) -> R {
        let mut waiters = self.waiters.lock();
        look(&mut waiters.attached, self.outcome.get().is_some())
    }

    /// Attaches something whose owner wants to be told of the end; false where the end has come already.
    pub fn watch(&self, attach: impl FnOnce(&mut A)) -> bool {
        let mut waiters = self.waiters.lock();
        if self.outcome.get().is_some() {
            return false;
        }
        attach(&mut waiters.attached);
        waiters.watched = true;
        true
    }

    /// The first outcome counts; None for any later one. Whether somebody watches it.
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
            place: Place { broker: "b".into(), queue_id: 0 },
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
            Home { lane: 0, topic: "t".into(), queue: None },
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
