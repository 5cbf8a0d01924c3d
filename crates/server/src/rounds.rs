//! The rounds of a thread that looks again and again whether something is due, and sleeps in between.
//!
//! Stopping the thread does not wait for its sleep to end. A test that has moved the clock asks for a round, and knows
//! when it is over that everything due by then was seen. Rounds end with the plane they belong to; the next plane has
//! its own.

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
    is_nudged: bool,
    /// The thread sleeps between two rounds, so a nudge has somebody to wake.
    is_pausing: bool,
    /// No round may begin. The thread is parked once it has ended the one it was in.
    is_held: bool,
    is_parked: bool,
    /// The number of rounds that were asked for, and the part of them that the current and the last round cover.
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
        if !state.is_stopped && !state.is_nudged && !state.is_held && state.asked == state.begun {
            state.is_pausing = true;
            self.changed.wait_for(&mut state, pause);
            state.is_pausing = false;
        }
        while state.is_held && !state.is_stopped {
            state.is_parked = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        state.is_parked = false;
        state.is_nudged = false;
        state.begun = state.asked;
        !state.is_stopped
    }

    /// Sleeps within a round, whatever nudges come; false when it is time to end.
    pub fn sleep(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.changed.wait_for(&mut state, pause);
        }
        !state.is_stopped
    }

    /// Makes the next round begin at once. Cheap: the thread is woken only if it sleeps between two rounds.
    pub fn nudge(&self) {
        let mut state = self.state.lock();
        state.is_nudged = true;
        if state.is_pausing {
            self.changed.notify_all();
        }
    }

    /// Lets no round begin until `release`, and waits until the present one has ended; false if that takes longer than
    /// `timeout`.
    pub fn hold(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        state.is_held = true;
        self.changed.notify_all();
        while !state.is_parked && !state.is_stopped {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.is_parked
    }

    /// Lets rounds begin again.
    pub fn release(&self) {
        self.state.lock().is_held = false;
        self.changed.notify_all();
    }

    /// Whether the thread should end its round soon.
    pub fn is_held(&self) -> bool {
        self.state.lock().is_held
    }

    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Asks for a round and waits until it has ended; false if that takes longer than `timeout`.
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
        assert!(!rounds.wait_for_one(LONG), "no thread is left to do it");
    }

    #[test]
    fn no_round_begins_while_they_are_held() {
        let rounds = Arc::new(Rounds::default());
        let count = Arc::new(AtomicI64::new(0));
        let thread = std::thread::spawn({
            let (rounds, count) = (Arc::clone(&rounds), Arc::clone(&count));
            move || {
                while rounds.pause(Duration::ZERO) {
                    count.fetch_add(1, SeqCst);
                }
            }
        });
        for _ in 0..20 {
            assert!(rounds.hold(LONG));
            let before = count.load(SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            rounds.nudge();
            assert_eq!(count.load(SeqCst), before);
            rounds.release();
            assert!(rounds.wait_for_one(LONG));
        }
        assert!(rounds.hold(LONG));
        rounds.stop();
        assert!(thread.join().is_ok(), "the end does not wait for a release");
        assert!(!Rounds::default().hold(Duration::from_millis(1)), "no thread");
    }

    #[test]
    fn waiting_for_a_thread_that_does_not_run_times_out() {
        assert!(!Rounds::default().wait_for_one(Duration::from_millis(1)));
    }

    #[test]
    fn a_nudge_ends_the_pause_also_when_it_came_before_it() {
        let rounds = Arc::new(Rounds::default());
        rounds.nudge();
        assert!(rounds.pause(LONG), "the nudge came first");
        let thread = std::thread::spawn({
            let rounds = Arc::clone(&rounds);
            move || rounds.pause(LONG)
        });
        while !rounds.state.lock().is_pausing {
            std::thread::yield_now();
        }
        rounds.nudge();
        assert!(thread.join().is_ok_and(|goes_on| goes_on));
    }

    #[test]
    fn a_nudge_does_not_cut_a_sleep_short() {
        let rounds = Arc::new(Rounds::default());
        let nudging = Arc::clone(&rounds);
        let thread = std::thread::spawn(move || nudging.nudge());
        let began = Instant::now();
        assert!(rounds.sleep(Duration::from_millis(30)));
        assert!(began.elapsed() >= Duration::from_millis(30));
        assert!(thread.join().is_ok());
    }
}
