//! The one clock: store timestamps and retention read time here, so that tests can move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since 1970, from the system or set by a test.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    hand: Hand,
}

#[derive(Clone, Debug, Default)]
enum Hand {
    #[default]
    System,
    /// The time itself.
    Manual(Arc<AtomicI64>),
    /// Milliseconds added to the system's time.
    Ahead(Arc<AtomicI64>),
}

impl Clock {
    pub fn system() -> Self {
        Self { hand: Hand::System }
    }

    /// A clock that stands still until [`Clock::advance_ms`] moves it; clones share its time.
    pub fn manual(start_ms: i64) -> Self {
        Self { hand: Hand::Manual(Arc::new(AtomicI64::new(start_ms))) }
    }

    /// A clock that runs like the system's, and jumps when [`Clock::advance_ms`] moves it.
    pub fn ahead(by_ms: i64) -> Self {
        Self { hand: Hand::Ahead(Arc::new(AtomicI64::new(by_ms))) }
    }

    pub fn now_ms(&self) -> i64 {
        match &self.hand {
            Hand::System => system_ms(),
            Hand::Manual(now_ms) => now_ms.load(Ordering::Acquire),
            Hand::Ahead(by_ms) => system_ms().saturating_add(by_ms.load(Ordering::Acquire)),
        }
    }

    /// Whether a test may move it.
    pub fn is_movable(&self) -> bool {
        !matches!(self.hand, Hand::System)
    }

    /// Moves a test's clock, forwards or back; returns false for the system's clock, which cannot be moved.
    pub fn advance_ms(&self, by_ms: i64) -> bool {
        match &self.hand {
            Hand::System => false,
            Hand::Manual(hand_ms) | Hand::Ahead(hand_ms) => {
                hand_ms.fetch_add(by_ms, Ordering::AcqRel);
                true
            }
        }
    }
}

/// Milliseconds since the machine was started. This clock (CLOCK_BOOTTIME) never jumps, and it counts while the machine
/// sleeps.
pub fn boot_time_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000)
}

fn system_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_hand() {
        let clock = Clock::manual(1_000);
        let shared = clock.clone();
        assert!(shared.advance_ms(5));
        assert_eq!(clock.now_ms(), 1_005);
        assert!(!Clock::system().advance_ms(5));
        assert!(Clock::system().now_ms() > 1_600_000_000_000);
    }

    #[test]
    fn a_clock_that_is_ahead_goes_on_by_itself() {
        let clock = Clock::ahead(1_000_000);
        assert!(clock.now_ms() >= system_ms() + 999_000);
        assert!(clock.clone().advance_ms(-2_000_000));
        assert!(clock.now_ms() <= system_ms() - 1_000_000);
    }
}
