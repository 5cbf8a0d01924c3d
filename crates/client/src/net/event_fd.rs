//! How an event loop hears that something has come: a descriptor that is readable from the first ring on.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::ClientError;

pub struct Bell {
    descriptor: OwnedFd,
    is_rung: AtomicBool,
}

impl Bell {
    pub fn new() -> Result<Self, ClientError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ClientError::Thread(error.to_string()))?;
        Ok(Bell { descriptor, is_rung: AtomicBool::new(false) })
    }

    pub fn fileno(&self) -> RawFd {
        self.descriptor.as_fd().as_raw_fd()
    }

    /// After the news was put where it is looked for.
    pub fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            // The counter only fills up after 2^64 − 2 unread rings.
            let _full = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Before looking. In this order: a ring after the read but before the store finds the bell rung and writes
    /// nothing, and its news is seen by the look that follows.
    pub fn hush(&self) {
        let mut counter = [0u8; 8];
        let _empty = rustix::io::read(&self.descriptor, &mut counter);
        self.is_rung.store(false, Ordering::Release);
    }
}
