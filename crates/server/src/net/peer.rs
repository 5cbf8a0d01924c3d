//! One connected peer as the rest of the server sees it: its mailbox, its figures and its signs of life.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ServerError;
use crate::net::counts::Counts;
use crate::net::sink::Parcel;

/// Shared by the connection's task, the threads that answer it (Python, wake-ups) and the caretaker.
pub struct Peer {
    pub id: u64,
    pub remote: SocketAddr,
    pub counts: Counts,
    started: Instant,
    mailbox: Mutex<Vec<Parcel>>,
    mailbox_bytes: AtomicUsize,
    output_bytes_max: usize,
    wake: Notify,
    closing: AtomicBool,
    end_reason: OnceLock<String>,
    active_ms: AtomicU64,
    /// When the first bytes of a frame that is not yet whole arrived, plus one; 0 while there is none.
    partial_ms: AtomicU64,
    /// Already on the list of those to be woken at the next flush.
    pub(crate) awaits_flush: AtomicBool,
    /// When the oldest answer that waits for the disk began to wait, plus one; 0 while there is none.
    parked_ms: AtomicU64,
    /// Answers that wait for a limit.
    pub(crate) answers_held: AtomicUsize,
    /// The broker plane stops: whatever waits for the disk is to be answered now.
    pub(crate) settles: AtomicBool,
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
            awaits_flush: AtomicBool::new(false),
            parked_ms: AtomicU64::new(0),
            answers_held: AtomicUsize::new(0),
            settles: AtomicBool::new(false),
        }
    }

    /// Leaves something to be written; the connection's task takes it as soon as it can.
    pub fn post(&self, parcel: Parcel) -> Result<(), ServerError> {
        if self.is_closing() {
            return Err(ServerError::ConnectionGone(self.id));
        }
        let queued = self.mailbox_bytes.fetch_add(parcel.len(), Relaxed);
        if queued > self.output_bytes_max {
            // A peer that asks and never reads is cut off before it fills the memory.
            self.close();
            return Err(ServerError::OutputFull { id: self.id, queued, limit: self.output_bytes_max });
        }
        self.mailbox.lock().push(parcel);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes all that was posted.
    pub fn take_mail(&self) -> Vec<Parcel> {
        let mail = std::mem::take(&mut *self.mailbox.lock());
        if !mail.is_empty() {
            let taken: usize = mail.iter().map(Parcel::len).sum();
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

    /// Asks the connection's task to end; what is already due is still written where the peer reads it.
    pub fn close(&self) {
        self.closing.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
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

    /// A frame was completed: whatever follows it in the buffer is a new one.
    pub fn mark_frame(&self) {
        self.partial_ms.store(0, Relaxed);
    }

    pub fn mark_parked(&self, since_ms: Option<u64>) {
        self.parked_ms.store(since_ms.map_or(0, |since| since + 1), Relaxed);
    }

    pub fn idle_ms(&self) -> u64 {
        self.now_ms().saturating_sub(self.active_ms.load(Relaxed))
    }

    pub fn partial_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.partial_ms.load(Relaxed))
    }

    pub fn parked_for_ms(&self) -> Option<u64> {
        since(self.now_ms(), self.parked_ms.load(Relaxed))
    }
}

fn since(now_ms: u64, mark: u64) -> Option<u64> {
    (mark > 0).then(|| now_ms.saturating_sub(mark - 1))
}
