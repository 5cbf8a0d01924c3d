//! One connection as the rest of the server sees it: its mailbox, its figures and its signs of life.

use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ServerError;
use crate::net::answers::Answers;
use crate::net::counts::Counts;
use crate::net::memory::PeerMemory;
use crate::transaction::shares::NameKey;

const DAY_MS: u64 = 86_400_000;
/// Counts as the age of a connection that has just come, so that its first request does not look like a high rate.
const SETTLED_MS: u64 = 10_000;

/// Shared by the connection's task, the threads that answer it (Python, wake-ups) and the caretaker.
pub struct Peer {
    pub id: u64,
    pub remote: SocketAddr,
    /// Its address, or the network whose addresses one machine can choose from: all of them share what all need.
    pub network: NameKey,
    pub counts: Counts,
    started: Instant,
    mailbox: Mutex<Mailbox>,
    /// Counts the memory that is kept for this connection.
    pub memory: PeerMemory,
    /// Pulls of this connection that wait.
    holds: AtomicUsize,
    wake: Notify,
    closing: AtomicBool,
    /// A whole frame has come.
    has_spoken: AtomicBool,
    /// When it was asked to make way for others because it has sent no frame, plus one; 0 while it was not.
    gives_way_ms: AtomicU64,
    end_reason: OnceLock<String>,
    active_ms: AtomicU64,
    /// Since when the peer has answers to read that the socket does not take, plus one; 0 while it has none.
    behind_ms: AtomicU64,
    /// Nothing has come for a while, so buffers that hold nothing are to be given back.
    is_quiet: AtomicBool,
    /// When the first bytes of a frame that is not yet whole arrived, plus one; 0 while there is none.
    partial_ms: AtomicU64,
    /// Already on the list of peers to be woken at the next confirmation.
    pub(crate) awaits_confirmation: AtomicBool,
    /// When the oldest unconfirmed answer began to wait, plus one; 0 while there is none.
    unconfirmed_ms: AtomicU64,
    /// Answers that wait for a limit.
    pub(crate) answers_held: AtomicUsize,
    /// The broker plane stops, so every unconfirmed request is to be answered now.
    pub(crate) answers_unconfirmed: AtomicBool,
}

#[derive(Default)]
struct Mailbox {
    answers: Vec<Answers>,
    bytes: usize,
    /// The connection has ended: nobody takes the answers.
    is_closed: bool,
}

impl Peer {
    pub fn new(id: u64, remote: SocketAddr, memory: PeerMemory) -> Self {
        Peer {
            id,
            remote,
            network: NameKey::of_address(remote.ip()),
            counts: Counts::default(),
            started: Instant::now(),
            mailbox: Mutex::default(),
            memory,
            holds: AtomicUsize::new(0),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            has_spoken: AtomicBool::new(false),
            gives_way_ms: AtomicU64::new(0),
            end_reason: OnceLock::new(),
            active_ms: AtomicU64::new(0),
            behind_ms: AtomicU64::new(0),
            is_quiet: AtomicBool::new(false),
            partial_ms: AtomicU64::new(0),
            awaits_confirmation: AtomicBool::new(false),
            unconfirmed_ms: AtomicU64::new(0),
            answers_held: AtomicUsize::new(0),
            answers_unconfirmed: AtomicBool::new(false),
        }
    }

    /// Leaves answers for the connection's task to write.
    pub fn post(&self, answers: Answers) -> Result<(), ServerError> {
        let gone = Err(ServerError::ConnectionGone(self.id));
        if self.is_closing() {
            return gone;
        }
        let bytes = answers.memory();
        let limit = self.memory.bytes_max();
        let queued = self.memory.used();
        if queued > limit {
            // A peer that asks and never reads must not fill the memory.
            self.cut(|| {
                format!("it does not read its answers: {queued} bytes are kept for it, and the limit is {limit} (connection_memory_bytes_max)")
            });
            return Err(ServerError::OutputFull { id: self.id, queued, limit });
        }
        let mut mailbox = self.mailbox.lock();
        if mailbox.is_closed {
            return gone;
        }
        if !self.memory.add_answer(bytes) {
            drop(mailbox);
            let limit = self.memory.all().bytes_max();
            self.cut(|| {
                format!("its answers do not fit: {queued} bytes are kept for it, {bytes} more are too many with the {limit} bytes for all connections (memory_bytes_max)")
            });
            return Err(ServerError::OutputFull { id: self.id, queued, limit });
        }
        mailbox.bytes += bytes;
        mailbox.answers.push(answers);
        drop(mailbox);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes all answers that were posted.
    pub fn take_posted(&self) -> Vec<Answers> {
        let mut mailbox = self.mailbox.lock();
        if mailbox.answers.is_empty() {
            return Vec::new();
        }
        self.memory.remove(std::mem::take(&mut mailbox.bytes));
        std::mem::take(&mut mailbox.answers)
    }

    /// Forgets answers that nobody takes any more, and those that are still to come.
    pub fn close_mailbox(&self) {
        self.mailbox.lock().is_closed = true;
        drop(self.take_posted());
    }

    /// Counts one more pull of the group that waits, with its bytes, or says why it may not.
    pub fn begin_hold(&self, group: &Arc<str>, bytes: usize, count_max: usize) -> Result<(), String> {
        if self.holds.load(Relaxed) >= count_max {
            return Err(format!(
                "[OVERLOAD] {count_max} pulls of this connection are held already (connection_hold_max); try again later"
            ));
        }
        if let Some(remark) = self.memory.refusal(bytes) {
            return Err(remark);
        }
        self.memory.all().groups.keep(group, self.network, bytes)?;
        if !self.memory.add(bytes) {
            self.memory.all().groups.give_back(group, self.network, bytes);
            return Err(self.memory.no_room());
        }
        self.holds.fetch_add(1, Relaxed);
        Ok(())
    }

    pub fn end_hold(&self, group: &str, bytes: usize) {
        self.memory.all().groups.give_back(group, self.network, bytes);
        self.holds.fetch_sub(1, Relaxed);
        self.memory.remove(bytes);
    }

    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Asks the connection's task to end. Answers posted before are still written if the peer reads them.
    pub fn close(&self) {
        self.closing.store(true, Release);
        self.wake.notify_one();
    }

    /// Closes a connection that costs too much.
    #[cold]
    pub fn cut(&self, reason: impl FnOnce() -> String) {
        if !self.is_closing() {
            self.counts.connections_cut.add(1);
            self.set_end_reason(reason());
            self.close();
        }
    }

    /// Closes a connection that has sent no frame. Without a reason, because there may be thousands of them, and each reason
    /// is a line in the log.
    #[cold]
    pub fn close_silent(&self) {
        self.counts.connections_cut.add(1);
        self.close();
    }

    /// Asks a connection that has sent no frame to end, unless one comes very soon.
    #[cold]
    pub fn give_way(&self) {
        self.gives_way_ms.store(self.now_ms() + 1, Relaxed);
        self.wake();
    }

    /// How long ago it was asked to make way for others.
    pub fn gives_way_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.gives_way_ms.load(Relaxed))
    }

    pub fn mark_spoken(&self) {
        self.has_spoken.store(true, Relaxed);
    }

    pub fn has_spoken(&self) -> bool {
        self.has_spoken.load(Relaxed)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Acquire)
    }

    pub(crate) fn set_end_reason(&self, reason: String) {
        let _first = self.end_reason.set(reason);
    }

    /// Why the server ended the connection, if the peer gave it a reason.
    pub fn end_reason(&self) -> Option<&str> {
        self.end_reason.get().map(String::as_str)
    }

    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// How many requests it would have sent in a day, as it has done since it came and in the seconds before.
    pub fn requests_per_day(&self) -> u64 {
        self.counts.requests.get().saturating_mul(DAY_MS) / (self.now_ms() + SETTLED_MS)
    }

    /// Notes that something came, and returns the time.
    pub fn mark_active(&self, partial_frame: bool) -> u64 {
        let now = self.now_ms();
        self.active_ms.store(now, Relaxed);
        if !partial_frame {
            self.partial_ms.store(0, Relaxed);
        } else if self.partial_ms.load(Relaxed) == 0 {
            self.partial_ms.store(now + 1, Relaxed);
        }
        now
    }

    /// Notes whether answers wait because the peer does not read.
    pub fn mark_behind(&self, is_behind: bool) {
        if is_behind != self.is_behind() {
            self.behind_ms.store(if is_behind { self.now_ms() + 1 } else { 0 }, Relaxed);
        }
    }

    pub fn is_behind(&self) -> bool {
        self.behind_ms.load(Relaxed) > 0
    }

    /// How long answers have waited because the peer does not read them.
    pub fn behind_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.behind_ms.load(Relaxed))
    }

    /// Makes the connection's task give back buffers that hold nothing.
    pub fn mark_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
        self.wake();
    }

    pub fn take_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed) && self.is_quiet.swap(false, Relaxed)
    }

    /// Notes that a frame is complete: bytes after it belong to a new one.
    pub fn mark_frame(&self) {
        self.partial_ms.store(0, Relaxed);
    }

    pub fn mark_unconfirmed(&self, since_ms: Option<u64>) {
        self.unconfirmed_ms.store(since_ms.map_or(0, |since| since + 1), Relaxed);
    }

    pub fn idle_ms(&self) -> u64 {
        self.now_ms().saturating_sub(self.active_ms.load(Relaxed))
    }

    pub fn partial_for_ms(&self) -> Option<u64> {
        self.partial_for_ms_at(self.now_ms())
    }

    /// How long a frame had been arriving at that time.
    pub fn partial_for_ms_at(&self, now_ms: u64) -> Option<u64> {
        since(now_ms, self.partial_ms.load(Relaxed))
    }

    pub fn unconfirmed_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.unconfirmed_ms.load(Relaxed))
    }
}

fn since(now_ms: u64, mark: u64) -> Option<u64> {
    (mark > 0).then(|| now_ms.saturating_sub(mark - 1))
}
