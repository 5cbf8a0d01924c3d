//! The one clock: store timestamps and retention read time here, so that tests can move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, from the system or from a test's hand.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual_ms: Option<Arc<AtomicI64>>,
}

impl Clock {
    pub fn system() -> Self {
        Self { manual_ms: None }
    }

    /// A clock that stands still until [`Clock::advance_ms`] moves it; clones share the hand.
    pub fn manual(start_ms: i64) -> Self {
        Self { manual_ms: Some(Arc::new(AtomicI64::new(start_ms))) }
    }

    pub fn now_ms(&self) -> i64 {
        match &self.manual_ms {
            Some(now_ms) => now_ms.load(Ordering::Acquire),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64),
        }
    }

    pub fn is_manual(&self) -> bool {
        self.manual_ms.is_some()
    }

    /// Moves a manual clock (backwards too); false on the system's clock, which nobody moves.
    pub fn advance_ms(&self, by_ms: i64) -> bool {
        match &self.manual_ms {
            Some(now_ms) => {
                now_ms.fetch_add(by_ms, Ordering::AcqRel);
                true
            }
            None => false,
        }
    }
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
}
