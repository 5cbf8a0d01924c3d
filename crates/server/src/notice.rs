//! A file descriptor that becomes readable when there is something to look at: Python's event loop waits for it.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::EventfdFlags;

pub struct Notice {
    fd: OwnedFd,
}

impl Notice {
    pub fn new() -> std::io::Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd })
    }

    pub fn fileno(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn set(&self) {
        // It can only fail because the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// To be called before looking, so that nothing that comes later is missed.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut counter);
    }
}
