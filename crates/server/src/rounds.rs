//! The rounds of a thread that looks again and again whether something is due, and sleeps in between.
//!
//! Whoever stops it does not wait for the sleep to end, nor does a test that has moved the clock: it asks for a round
//! and knows, when that is over, that nothing is left that was due.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub struct Rounds {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    /// How many rounds were asked for, and which of them the current and the last round came after.
    asked: u64,
    begun: u64,
    done: u64,
}

impl Rounds {
    /// Called by the thread between two rounds: sleeps until the next one; false when it is time to end.
    pub fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        state.done = state.begun;
        self.changed.notify_all();
        if !state.is_stopped && state.asked == state.begun {
            self.changed.wait_for(&mut state, pause);
        }
        state.begun = state.asked;
        !state.is_stopped
    }

    /// Sleeps within a round; false when it is time to end.
    pub fn sleep(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.changed.wait_for(&mut state, pause);
        }
        !state.is_stopped
    }

    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Has a round begin from now on and waits for its end; false where that does not come in time.
    pub fn wait_for_one(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        state.asked += 1;
        let wanted = state.asked;
        self.changed.notify_all();
        while state.done < wanted && !state.is_stopped {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.done >= wanted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_round_that_was_asked_for_sees_what_was_there_before_and_waits_for_no_sleep() {
        let rounds = Arc::new(Rounds::default());
        let (given, seen) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let thread = std::thread::spawn({
            let (rounds, given, seen) = (Arc::clone(&rounds), Arc::clone(&given), Arc::clone(&seen));
            move || {
                while rounds.pause(LONG) {
                    let now = given.load(SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                    seen.store(now, SeqCst);
                }
            }
        });
        for value in 1..=50 {
            given.store(value, SeqCst);
            assert!(rounds.wait_for_one(LONG));
            assert_eq!(seen.load(SeqCst), value);
        }
        rounds.stop();
        assert!(thread.join().is_ok());
        assert!(!rounds.wait_for_one(LONG), "nobody is left who would do it");
    }

    #[test]
    fn who_waits_for_a_thread_that_does_not_run_gives_up() {
        assert!(!Rounds::default().wait_for_one(Duration::from_millis(1)));
    }
}
