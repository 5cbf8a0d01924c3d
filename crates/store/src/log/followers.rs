//! Threads that follow the end of the log, such as the senders to replicas: they sleep until something is appended.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Followers {
    /// How many threads sleep, or are about to.
    asleep: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Followers {
    /// To be called after the log's end has moved.
    #[inline]
    pub(crate) fn notify(&self) {
        // Pairs with the fence in `wait`: either this sees the sleeper, or the sleeper sees the new end.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let _sleeping = self.lock.lock();
        self.wake.notify_all();
    }

    /// Sleeps until `is_moved` says yes or the time is over.
    pub(crate) fn wait(&self, timeout: Duration, is_moved: impl Fn() -> bool) {
        let mut sleeping = self.lock.lock();
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_moved() {
            self.wake.wait_for(&mut sleeping, timeout);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}
