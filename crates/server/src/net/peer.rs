//! One connection as the rest of the server sees it: its mailbox, its figures and its signs of life.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ServerError;
use crate::net::answers::Answers;
use crate::net::counts::Counts;

/// Shared by the connection's task, the threads that answer it (Python, wake-ups) and the caretaker.
pub struct Peer {
    pub id: u64,
    pub remote: SocketAddr,
    pub counts: Counts,
    started: Instant,
    mailbox: Mutex<Vec<Answers>>,
    mailbox_bytes: AtomicUsize,
    output_bytes_max: usize,
    wake: Notify,
    closing: AtomicBool,
    end_reason: OnceLock<String>,
    active_ms: AtomicU64,
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

impl Peer {
    pub fn new(id: u64, remote: SocketAddr, output_bytes_max: usize) -> Self {
        Peer {
            id,
            remote,
            counts: Counts::default(),
            started: Instant::now(),
            mailbox: Mutex::default(),
            mailbox_bytes: AtomicUsize::new(0),
            output_bytes_max,
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            end_reason: OnceLock::new(),
            active_ms: AtomicU64::new(0),
            partial_ms: AtomicU64::new(0),
            awaits_confirmation: AtomicBool::new(false),
            unconfirmed_ms: AtomicU64::new(0),
            answers_held: AtomicUsize::new(0),
            answers_unconfirmed: AtomicBool::new(false),
        }
    }

    /// Leaves answers for the connection's task to write.
    pub fn post(&self, answers: Answers) -> Result<(), ServerError> {
        if self.is_closing() {
            return Err(ServerError::ConnectionGone(self.id));
        }
        let queued = self.mailbox_bytes.fetch_add(answers.bytes(), Relaxed);
        if queued > self.output_bytes_max {
            // A peer that asks and never reads must not fill the memory.
            self.close();
            return Err(ServerError::OutputFull { id: self.id, queued, limit: self.output_bytes_max });
        }
        self.mailbox.lock().push(answers);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes all answers that were posted.
    pub fn take_posted(&self) -> Vec<Answers> {
        let mail = std::mem::take(&mut *self.mailbox.lock());
        if !mail.is_empty() {
            let taken: usize = mail.iter().map(Answers::bytes).sum();
            self.mailbox_bytes.fetch_sub(taken, Relaxed);
        }
        mail
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

    pub fn mark_active(&self, partial_frame: bool) {
        let now = self.now_ms();
        self.active_ms.store(now, Relaxed);
        if !partial_frame {
            self.partial_ms.store(0, Relaxed);
        } else if self.partial_ms.load(Relaxed) == 0 {
            self.partial_ms.store(now + 1, Relaxed);
        }
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
        since(self.now_ms(), self.partial_ms.load(Relaxed))
    }

    pub fn unconfirmed_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.unconfirmed_ms.load(Relaxed))
    }
}

fn since(now_ms: u64, mark: u64) -> Option<u64> {
    (mark > 0).then(|| now_ms.saturating_sub(mark - 1))
}
