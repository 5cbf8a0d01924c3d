//! A lease: a time after which a master acknowledges nothing, because another node may have become master by then.
//!
//! A master needs one if it acknowledges records before replicas hold them. Its time is that of [`boot_time_ms`].

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::boot_time_ms;

const NONE: i64 = i64::MAX;

pub(crate) struct Lease {
    deadline_ms: AtomicI64,
}

impl Lease {
    pub(crate) fn none() -> Self {
        Self { deadline_ms: AtomicI64::new(NONE) }
    }

    /// Sets the time after which nothing is acknowledged; None takes the lease away.
    pub(crate) fn set(&self, deadline_ms: Option<i64>) {
        self.deadline_ms.store(deadline_ms.unwrap_or(NONE), Ordering::SeqCst);
    }

    /// Whether there is a lease and its time is over.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let deadline_ms = self.deadline_ms.load(Ordering::Acquire);
        deadline_ms != NONE && is_past(deadline_ms)
    }
}

#[cold]
fn is_past(deadline_ms: i64) -> bool {
    boot_time_ms() >= deadline_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_at_its_time_and_can_be_renewed() {
        let lease = Lease::none();
        assert!(!lease.is_over());
        lease.set(Some(boot_time_ms() + 3_600_000));
        assert!(!lease.is_over());
        lease.set(Some(boot_time_ms()));
        assert!(lease.is_over());
        lease.set(Some(boot_time_ms() + 3_600_000));
        assert!(!lease.is_over());
        lease.set(Some(0));
        assert!(lease.is_over());
        lease.set(None);
        assert!(!lease.is_over());
    }
}
