//! How long a replica takes to acknowledge what it is sent, mostly the time of its syncs.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A measurement counts for this long. Without traffic nobody is held up.
const RECENT: Duration = Duration::from_secs(10);
/// The weight of the newest measurement.
const WEIGHT: f64 = 0.25;

/// Follows one record at a time from the send to its acknowledgement, which costs nothing per record.
#[derive(Default)]
pub(super) struct AckTimes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The end of the record that is followed, and when it was sent.
    followed: Option<(i64, Instant)>,
    mean_ms: f64,
    measured_at: Option<Instant>,
}

impl AckTimes {
    pub(super) fn sent(&self, end: i64, now: Instant) {
        self.state.lock().followed.get_or_insert((end, now));
    }

    pub(super) fn acknowledged(&self, held: i64, now: Instant) {
        let mut state = self.state.lock();
        let Some((_, sent_at)) = state.followed.take_if(|(end, _)| *end <= held) else { return };
        let took_ms = now.saturating_duration_since(sent_at).as_secs_f64() * 1_000.0;
        let is_first = !state.is_recent(now);
        state.mean_ms += (took_ms - state.mean_ms) * if is_first { 1.0 } else { WEIGHT };
        state.measured_at = Some(now);
    }

    /// The mean of late, or how long the present one has taken if that is more; None without traffic.
    pub(super) fn recent_ms(&self, now: Instant) -> Option<i64> {
        let state = self.state.lock();
        let mean_ms = state.is_recent(now).then_some(state.mean_ms as i64);
        let waiting = state.followed.map(|(_, at)| now.saturating_duration_since(at).as_millis() as i64);
        mean_ms.max(waiting)
    }
}

impl State {
    fn is_recent(&self, now: Instant) -> bool {
        self.measured_at.is_some_and(|at| now.saturating_duration_since(at) < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_newest_times_and_is_forgotten_without_traffic() {
        let (times, begin) = (AckTimes::default(), Instant::now());
        let at = |ms: u64| begin + Duration::from_millis(ms);
        assert_eq!(times.recent_ms(at(0)), None);
        times.sent(100, at(0));
        times.sent(200, at(300));
        assert_eq!(times.recent_ms(at(350)), Some(350), "it waits");
        times.acknowledged(99, at(390));
        times.acknowledged(200, at(400));
        assert_eq!(times.recent_ms(at(500)), Some(400));
        for round in 1..40 {
            times.sent(200 + round, at(500 + round as u64 * 10));
            times.acknowledged(200 + round, at(502 + round as u64 * 10));
        }
        assert_eq!(times.recent_ms(at(1_000)), Some(2));
        assert_eq!(times.recent_ms(at(60_000)), None);
    }
}
