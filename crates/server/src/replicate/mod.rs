//! Replication: the log of a master, byte for byte, on its replicas.
//!
//! ```text
//!   master                                                     replica
//!   Hub ── link ── sender thread   ── LOG, STATE, BEAT ──▶  reader thread ── append_raw ── Store
//!               └─ reader thread   ◀────────── ACK ───────  answering thread
//! ```
//! `socket` is the connection before the stream begins, `frame` is what both ends write then, `hub` is the master's end with all its links, `follower` a replica's end. Python
//! opens the connection, proves both ends' identity, decides where the stream begins, and hands the socket over; it also
//! decides which replicas must hold a record before it is confirmed. STATE is Python's control state, which passes
//! through here as plain bytes.
//!
//! `apache` speaks Apache's protocol instead, for a move from one broker to the other.

mod ack_times;
pub(crate) mod apache;
pub(crate) mod follower;
mod followers;
mod frame;
pub(crate) mod hub;
pub(crate) mod socket;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Both ends of a link.
#[derive(Debug, Clone)]
pub struct ReplicationSettings {
    /// An end that has nothing else to say sends a beat this often.
    pub beat_interval: Duration,
    /// A peer that was silent for this long is gone.
    pub silence_max: Duration,
    /// The most bytes of the log in one frame, unless a single record is larger.
    pub chunk_bytes: usize,
    /// Bytes per second for replicas that nobody waits for; 0 means no limit.
    pub catch_up_bytes_per_second: u64,
    /// A node that must hold records counts as a follower for this long after it was heard. None if no other node can
    /// become master: then nobody asks.
    pub followed_for: Option<Duration>,
    /// Control state that may wait for a slow peer, or for Python.
    pub state_bytes_max: usize,
}

/// How long an end that is stopped waits for its threads. They can do no harm afterwards: one that a disk or a peer
/// holds up ends by itself when it goes on.
const STOP_PATIENCE: Duration = Duration::from_millis(50);
const STOP_INTERVAL: Duration = Duration::from_millis(1);

/// Waits for the threads, but not for long.
fn join_soon(threads: Vec<JoinHandle<()>>) {
    let deadline = Instant::now() + STOP_PATIENCE;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(STOP_INTERVAL);
        }
        if thread.is_finished() {
            // A thread that panicked has printed its panic.
            let _ = thread.join();
        }
    }
}

/// A position in a journal of control state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatePosition {
    pub epoch: u64,
    pub version: u64,
}
