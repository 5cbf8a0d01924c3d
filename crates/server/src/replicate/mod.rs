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

pub(crate) mod follower;
mod frame;
pub(crate) mod hub;
pub(crate) mod socket;

use std::time::Duration;

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
    /// Control state that may wait for a slow peer, or for Python.
    pub state_bytes_max: usize,
}

/// A position in a journal of control state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatePosition {
    pub epoch: u64,
    pub version: u64,
}
