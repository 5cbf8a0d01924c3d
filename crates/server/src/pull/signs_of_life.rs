//! Signs that the reader of a queue lives, for the control plane, which otherwise gives the queue to another reader.
//!
//! A consumer that reads in order has a lock, and nobody else pulls from its queue or commits an offset of it. Neither
//! request names the client, so a sign is known by its group and queue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

/// Group, topic and queue.
pub type GroupQueue = (String, String, i32);

/// The queues that somebody watches, and whether there was a sign since.
#[derive(Default)]
pub struct SignsOfLife {
    /// Read before the lock, because it is nearly always 0.
    count: AtomicUsize,
    watched: Mutex<HashMap<GroupQueue, bool>>,
}

impl SignsOfLife {
    /// Watches queues from now on; signs from before are forgotten.
    pub fn watch(&self, queues: impl IntoIterator<Item = GroupQueue>) {
        let mut watched = self.watched.lock();
        watched.extend(queues.into_iter().map(|queue| (queue, false)));
        self.count.store(watched.len(), SeqCst);
    }

    /// Notes a sign, if anybody watches the queue.
    #[inline]
    pub fn note(&self, group: &str, topic: &str, queue_id: i32) {
        if self.count.load(SeqCst) != 0 {
            self.note_watched(group, topic, queue_id);
        }
    }

    #[cold]
    fn note_watched(&self, group: &str, topic: &str, queue_id: i32) {
        if let Some(seen) = self.watched.lock().get_mut(&(group.to_owned(), topic.to_owned(), queue_id)) {
            *seen = true;
        }
    }

    /// Ends the watch of these queues; returns those without a sign.
    pub fn take_silent(&self, queues: impl IntoIterator<Item = GroupQueue>) -> Vec<GroupQueue> {
        let mut watched = self.watched.lock();
        let silent = queues.into_iter().filter(|queue| watched.remove(queue) == Some(false)).collect();
        self.count.store(watched.len(), SeqCst);
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_silent_until_somebody_reads_it() {
        let signs = SignsOfLife::default();
        let queue = |queue_id| ("g".to_owned(), "t".to_owned(), queue_id);
        signs.note("g", "t", 0);
        signs.watch([queue(0), queue(1), queue(2)]);
        signs.note("g", "t", 1);
        signs.note("h", "t", 0);
        assert_eq!(signs.take_silent([queue(0), queue(1), queue(7)]), [queue(0)]);
        signs.watch([queue(2)]);
        assert_eq!(signs.take_silent([queue(2)]), [queue(2)]);
        assert_eq!(signs.take_silent([queue(2)]), [], "nobody watches it any more");
    }
}
