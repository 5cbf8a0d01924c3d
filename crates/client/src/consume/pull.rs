//! A stream of messages out of any number of queues: each has one pull under way while there is room for more.
//!
//! ```text
//! queue ─ pull ─▶ answer ─▶ desk ─▶ take            (no Python)
//!                   └─ moved, refused, failed ─▶ event ─▶ Python decides ─▶ resume
//! ```

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::consume::prefetch::{Desk, Held, News, PullEvent, PullLimits, PullPlace, PullPortion};
use crate::consume::pull_answer::{Answer, PullWanted};
use crate::error::ClientError;
use crate::net::event_fd::Bell;
use crate::net::network::Network;

/// Messages of queues that were given to it, taken by any thread.
pub struct PullStream {
    network: Arc<Network>,
    limits: PullLimits,
    desk: Mutex<Desk>,
    /// Something may be there to take, or the end.
    something: Condvar,
    /// Readable when events wait, or when messages came that were awaited.
    bell: Bell,
}

impl PullStream {
    pub fn new(network: Arc<Network>, limits: PullLimits) -> Result<Arc<Self>, ClientError> {
        let (desk, something) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(PullStream { network, limits, desk, something, bell: Bell::new()? }))
    }

    pub fn fileno(&self) -> RawFd {
        self.bell.fileno()
    }

    /// Begins to pull a queue; `queue` is a number of the caller's, used once.
    pub fn begin(
        self: &Arc<Self>,
        queue: u64,
        wanted: PullWanted,
        place: PullPlace,
        queue_offset: i64,
        is_paused: bool,
    ) {
        let held = Held::new(place, queue_offset, is_paused);
        let go_on = Arc::clone(&held.go_on);
        {
            let mut desk = self.desk.lock();
            if desk.is_closed {
                return;
            }
            desk.begin(queue, held);
        }
        let stream = Arc::downgrade(self);
        let network = Arc::downgrade(&self.network);
        let patience =
            Duration::from_millis(wanted.hold_ms.max(0).unsigned_abs()) + self.limits.answer_timeout;
        let idle_pause = self.limits.idle_pause;
        self.network.spawn(async move {
            loop {
                // Held only between the waits, so that a stream which nobody has any more can go.
                let Some(now) = stream.upgrade() else { return };
                let next = {
                    let desk = now.desk.lock();
                    let Some(next) = desk.next_pull(queue, &now.limits) else { return };
                    next
                };
                drop(now);
                let Some((place, queue_offset, count, bytes)) = next else {
                    go_on.notified().await;
                    continue;
                };
                let Some(network) = network.upgrade() else { return };
                let request = wanted.request(queue_offset, count, bytes);
                let asked = Instant::now();
                let outcome = tokio::select! {
                    outcome = network.call(&place.address, request, patience) => outcome,
                    () = ended(&go_on, &stream, queue) => return,
                };
                drop(network);
                let Some(now) = stream.upgrade() else { return };
                match outcome {
                    Ok(reply) => {
                        let answer = Answer::read(&reply, &wanted, queue_offset);
                        let is_idle = answer.is_idle(queue_offset) && asked.elapsed() < idle_pause;
                        now.change(|desk| desk.put(queue, answer));
                        drop(now);
                        if is_idle {
                            tokio::time::sleep(idle_pause).await;
                        }
                    }
                    Err(error) => now.change(|desk| desk.put_failure(queue, error.to_string())),
                }
            }
        });
    }

    /// Gives a queue up, with what is held of it.
    pub fn end(&self, queue: u64) {
        let held = self.desk.lock().end(queue);
        if let Some(held) = held {
            held.go_on.notify_one();
        }
    }

    /// Goes on after an event, from `queue_offset` where given.
    pub fn resume(&self, queue: u64, place: PullPlace, queue_offset: Option<i64>) {
        self.desk.lock().resume(queue, place, queue_offset);
    }

    /// Pulls to come go there.
    pub fn relocate(&self, queue: u64, place: PullPlace) {
        self.desk.lock().relocate(queue, place);
    }

    /// What is held of the queue is given, or not.
    pub fn pause(&self, queue: u64, is_paused: bool) {
        self.change(|desk| News { messages: desk.pause(queue, is_paused), event: false });
    }

    /// The offset of the message that is given next; None for a queue that is not ours.
    pub fn position(&self, queue: u64) -> Option<i64> {
        self.desk.lock().get(queue).map(Held::position)
    }

    /// Up to so many messages that are there now, and none after one that is compressed. Where there are none, the descriptor tells of the next.
    pub fn take(&self, count_max: usize) -> Vec<PullPortion> {
        let mut desk = self.desk.lock();
        let portions = desk.take(count_max);
        desk.is_awaited = portions.is_empty();
        portions
    }

    /// The same, waiting for the first until then; nothing where `wake` or `close` is called meanwhile. `wakes` is
    /// what [`PullStream::wakes`] said before the caller looked for what it is woken for.
    pub fn take_until(&self, count_max: usize, deadline: Instant, wakes: u64) -> Vec<PullPortion> {
        let mut desk = self.desk.lock();
        loop {
            let portions = desk.take(count_max);
            if !portions.is_empty() || desk.is_closed || desk.wakes != wakes {
                return portions;
            }
            if self.something.wait_until(&mut desk, deadline).timed_out() {
                return desk.take(count_max);
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.desk.lock().is_closed
    }

    pub fn wakes(&self) -> u64 {
        self.desk.lock().wakes
    }

    /// Lets everybody look again who waits in `take_until`.
    pub fn wake(&self) {
        self.desk.lock().wakes += 1;
        self.something.notify_all();
    }

    /// What Python has to decide; the descriptor is quiet until there is more.
    pub fn events(&self) -> Vec<PullEvent> {
        self.bell.hush();
        self.desk.lock().events()
    }

    /// Gives all queues up. Safe to call twice, and from a forked process.
    pub fn close(&self) {
        if !self.network.is_ours() {
            return;
        }
        let all = {
            let mut desk = self.desk.lock();
            desk.is_closed = true;
            desk.end_all()
        };
        for held in all {
            held.go_on.notify_one();
        }
        self.something.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut Desk) -> News) {
        let mut desk = self.desk.lock();
        let news = change(&mut desk);
        let is_awaited = news.messages && std::mem::take(&mut desk.is_awaited);
        drop(desk);
        if news.messages {
            self.something.notify_all();
        }
        if news.event || is_awaited {
            self.bell.ring();
        }
    }
}

/// Waits until the queue has been given up.
async fn ended(go_on: &tokio::sync::Notify, stream: &std::sync::Weak<PullStream>, queue: u64) {
    loop {
        go_on.notified().await;
        let Some(stream) = stream.upgrade() else { return };
        if stream.desk.lock().get(queue).is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
