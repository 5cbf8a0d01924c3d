//! Requests that took long, and which part of their way took it.
//!
//! The hot path compares a time that it has measured anyway with a limit. Only a slow request allocates: it waits here
//! until Python takes it and writes a log line.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Slow requests that wait for Python. Beyond that they are only counted.
const WAITING_MAX: usize = 1_000;
const OFF: u64 = u64::MAX;

/// The parts of a request's time.
pub mod part {
    pub const HANDLED: &str = "handled";
    pub const FLUSH: &str = "flush";
    pub const REPLICAS: &str = "replicas";
    pub const WRITTEN: &str = "written";
}

/// A slow request, or several of one kind that were handled together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowRequest {
    pub remote: SocketAddr,
    /// None for answers that the peer was slow to read: they belong to several requests.
    pub request_code: Option<i32>,
    pub requests: u64,
    pub topic: Option<String>,
    /// Milliseconds by part, in the order in which they passed.
    pub parts: Vec<(&'static str, u64)>,
}

/// The slow requests of a listener.
pub struct SlowRequests {
    limit_ms: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<SlowRequest>,
    left_out: u64,
}

impl Default for SlowRequests {
    fn default() -> Self {
        SlowRequests { limit_ms: AtomicU64::new(OFF), waiting: Mutex::default() }
    }
}

impl SlowRequests {
    /// Requests that take at least this long are slow; 0 means that none is.
    pub fn set_limit_ms(&self, limit_ms: u64) {
        self.limit_ms.store(if limit_ms == 0 { OFF } else { limit_ms }, Relaxed);
    }

    #[inline]
    pub fn limit_ms(&self) -> u64 {
        self.limit_ms.load(Relaxed)
    }

    #[cold]
    pub fn note(&self, request: SlowRequest) {
        let mut waiting = self.waiting.lock();
        if waiting.requests.len() < WAITING_MAX {
            waiting.requests.push(request);
        } else {
            waiting.left_out += request.requests;
        }
    }

    /// Takes all of them, and the number of requests that found no room.
    pub fn take(&self) -> (Vec<SlowRequest>, u64) {
        let Waiting { requests, left_out } = std::mem::take(&mut *self.waiting.lock());
        (requests, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(requests: u64) -> SlowRequest {
        SlowRequest {
            remote: ([127, 0, 0, 1], 1).into(),
            request_code: Some(310),
            requests,
            topic: None,
            parts: vec![(part::HANDLED, 5)],
        }
    }

    #[test]
    fn zero_switches_it_off() {
        let slow = SlowRequests::default();
        assert_eq!(slow.limit_ms(), u64::MAX);
        slow.set_limit_ms(5);
        assert_eq!(slow.limit_ms(), 5);
        slow.set_limit_ms(0);
        assert_eq!(slow.limit_ms(), u64::MAX);
    }

    #[test]
    fn those_beyond_the_limit_are_counted() {
        let slow = SlowRequests::default();
        for _ in 0..WAITING_MAX + 2 {
            slow.note(request(3));
        }
        let (taken, left_out) = slow.take();
        assert_eq!((taken.len(), left_out), (WAITING_MAX, 6));
        assert_eq!(slow.take(), (Vec::new(), 0));
    }
}
