//! A stream of messages from any number of queues. Each queue has one pull in flight while there is space for more.
//!
//! ```text
//! queue ─ pull ─▶ answer ─▶ prefetch ─▶ take            (no Python)
//!                   └─ moved, refused, failed ─▶ event ─▶ Python decides ─▶ resume
//! ```

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::consume::prefetch::{
    Change, NextPull, Prefetch, PullChunk, PullEvent, PullLimits, PullSource, QueuePrefetch,
};
use crate::consume::pull_answer::{Answer, PullQuery};
use crate::error::ClientError;
use crate::net::event_fd::EventFd;
use crate::net::network::Network;

/// Reads queues ahead. Any thread may take the messages.
pub struct PullStream {
    network: Arc<Network>,
    limits: PullLimits,
    prefetch: Mutex<Prefetch>,
    /// There may be messages to take, or the stream is closed.
    arrived: Condvar,
    /// Readable while events wait, or when messages came after `take` found none.
    event_fd: EventFd,
}

impl PullStream {
    pub fn new(network: Arc<Network>, limits: PullLimits) -> Result<Arc<Self>, ClientError> {
        let (prefetch, arrived) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(PullStream { network, limits, prefetch, arrived, event_fd: EventFd::new()? }))
    }

    pub fn fileno(&self) -> RawFd {
        self.event_fd.fileno()
    }

    /// Begins to pull a queue. The caller chooses the number `queue`, and uses it once.
    pub fn begin(
        self: &Arc<Self>,
        queue: u64,
        query: PullQuery,
        source: PullSource,
        queue_offset: i64,
        is_paused: bool,
    ) {
        let held = QueuePrefetch::new(source, queue_offset, is_paused);
        let go_on = Arc::clone(&held.go_on);
        {
            let mut prefetch = self.prefetch.lock();
            if prefetch.is_closed {
                return;
            }
            prefetch.begin(queue, held);
        }
        let stream = Arc::downgrade(self);
        let network = Arc::downgrade(&self.network);
        let patience =
            Duration::from_millis(query.hold_ms.max(0).unsigned_abs()) + self.limits.answer_timeout;
        let idle_pause = self.limits.idle_pause;
        self.network.spawn(async move {
            loop {
                // Strong references only between the waits, so that an unused stream can be dropped.
                let Some(now) = stream.upgrade() else { return };
                let next = {
                    let prefetch = now.prefetch.lock();
                    let Some(next) = prefetch.next_pull(queue, &now.limits) else { return };
                    next
                };
                drop(now);
                let Some(NextPull { source, queue_offset, count_max, bytes_max }) = next else {
                    go_on.notified().await;
                    continue;
                };
                let Some(network) = network.upgrade() else { return };
                let request = query.request(queue_offset, count_max, bytes_max);
                let sent_at = Instant::now();
                let outcome = tokio::select! {
                    outcome = network.call(&source.address, request, patience) => outcome,
                    () = ended(&go_on, &stream, queue) => return,
                };
                drop(network);
                let Some(now) = stream.upgrade() else { return };
                match outcome {
                    Ok(reply) => {
                        let answer = Answer::read(&reply, &query, queue_offset);
                        let is_idle = answer.is_idle(queue_offset) && sent_at.elapsed() < idle_pause;
                        now.change(|prefetch| prefetch.put(queue, answer));
                        drop(now);
                        if is_idle {
                            tokio::time::sleep(idle_pause).await;
                        }
                    }
                    Err(error) => now.change(|prefetch| prefetch.put_failure(queue, error.to_string())),
                }
            }
        });
    }

    /// Stops pulling a queue and drops its messages.
    pub fn end(&self, queue: u64) {
        let held = self.prefetch.lock().end(queue);
        if let Some(held) = held {
            held.go_on.notify_one();
        }
    }

    /// Goes on after an event, from `queue_offset` if one is given.
    pub fn resume(&self, queue: u64, source: PullSource, queue_offset: Option<i64>) {
        self.prefetch.lock().resume(queue, source, queue_offset);
    }

    /// Sets the source of later pulls.
    pub fn relocate(&self, queue: u64, source: PullSource) {
        self.prefetch.lock().relocate(queue, source);
    }

    /// Pauses or resumes the delivery of a queue. Pulling goes on until its limits are reached.
    pub fn pause(&self, queue: u64, is_paused: bool) {
        self.change(|prefetch| Change { messages: prefetch.pause(queue, is_paused), event: false });
    }

    /// The queue offset of the next message; `None` for a queue that is not pulled here.
    pub fn position(&self, queue: u64) -> Option<i64> {
        self.prefetch.lock().get(queue).map(QueuePrefetch::position)
    }

    /// Takes up to `count_max` messages, and none after a compressed one. If there are none, the next message notifies
    /// the descriptor.
    pub fn take(&self, count_max: usize) -> Vec<PullChunk> {
        let mut prefetch = self.prefetch.lock();
        let chunks = prefetch.take(count_max);
        prefetch.is_awaited = chunks.is_empty();
        chunks
    }

    /// Takes messages, and waits for the first one until the deadline. Returns nothing if `wake` or `close` is called
    /// meanwhile. `wake_count` is what [`PullStream::wake_count`] returned before the caller checked its own conditions.
    pub fn take_until(&self, count_max: usize, deadline: Instant, wake_count: u64) -> Vec<PullChunk> {
        let mut prefetch = self.prefetch.lock();
        loop {
            let chunks = prefetch.take(count_max);
            if !chunks.is_empty() || prefetch.is_closed || prefetch.wake_count != wake_count {
                return chunks;
            }
            if self.arrived.wait_until(&mut prefetch, deadline).timed_out() {
                return prefetch.take(count_max);
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.prefetch.lock().is_closed
    }

    pub fn wake_count(&self) -> u64 {
        self.prefetch.lock().wake_count
    }

    /// Wakes all callers of `take_until`.
    pub fn wake(&self) {
        self.prefetch.lock().wake_count += 1;
        self.arrived.notify_all();
    }

    /// Takes what Python must decide, and clears the descriptor.
    pub fn events(&self) -> Vec<PullEvent> {
        self.event_fd.clear();
        self.prefetch.lock().events()
    }

    /// Ends all queues. You may call it twice, and in a forked process.
    pub fn close(&self) {
        if !self.network.is_own_process() {
            return;
        }
        let all = {
            let mut prefetch = self.prefetch.lock();
            prefetch.is_closed = true;
            prefetch.end_all()
        };
        for held in all {
            held.go_on.notify_one();
        }
        self.arrived.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut Prefetch) -> Change) {
        let mut prefetch = self.prefetch.lock();
        let change = change(&mut prefetch);
        let is_awaited = change.messages && std::mem::take(&mut prefetch.is_awaited);
        drop(prefetch);
        if change.messages {
            self.arrived.notify_all();
        }
        if change.event || is_awaited {
            self.event_fd.notify();
        }
    }
}

/// Waits until the queue has ended.
async fn ended(go_on: &tokio::sync::Notify, stream: &std::sync::Weak<PullStream>, queue: u64) {
    loop {
        go_on.notified().await;
        let Some(stream) = stream.upgrade() else { return };
        if stream.prefetch.lock().get(queue).is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
