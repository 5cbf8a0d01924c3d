//! A descriptor that wakes an event loop: it is readable from the first `notify` until `clear`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::ClientError;

pub struct EventFd {
    descriptor: OwnedFd,
    is_set: AtomicBool,
}

impl EventFd {
    pub fn new() -> Result<Self, ClientError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ClientError::Thread(error.to_string()))?;
        Ok(EventFd { descriptor, is_set: AtomicBool::new(false) })
    }

    pub fn fileno(&self) -> RawFd {
        self.descriptor.as_fd().as_raw_fd()
    }

    /// Call it after the event was put where the loop looks for it.
    pub fn notify(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            // The counter overflows only after 2^64 − 2 unread writes.
            let _full = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Call it before looking for events. The order matters: a `notify` between the read and the store finds the flag
    /// set and writes nothing, and the look that follows sees its event.
    pub fn clear(&self) {
        let mut counter = [0u8; 8];
        let _empty = rustix::io::read(&self.descriptor, &mut counter);
        self.is_set.store(false, Ordering::Release);
    }
}
