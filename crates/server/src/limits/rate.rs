//! A token bucket as one number: the time at which it will be full again.
//!
//! ```text
//!            now            full_at
//! ────────────┼───────────────┼──────────▶ time
//!             |◀── missing ──▶|             tokens = burst − missing, as time at the given rate
//! ```
//! Taking tokens moves `full_at` on by their cost, and time does the rest. A cost larger than the whole bucket passes when
//! the bucket is full, and those who come after it pay for it, so that nothing is too large for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const SECOND_NS: i64 = 1_000_000_000;
/// The size of a bucket: the burst that may come after a pause.
const BURST_NS: i64 = SECOND_NS / 10;
/// A pull waits for the tokens of one such share, instead of taking them one by one.
const SHARES_PER_SECOND: u64 = 200;

/// The limits per second; 0 stands for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    pub messages: u64,
    pub bytes: u64,
}

#[derive(Debug)]
struct Meter {
    per_second: u64,
    burst_ns: i64,
    full_at_ns: AtomicI64,
}

impl Meter {
    /// None if there is no limit. At least one message fits into the bucket, however slowly it fills.
    fn new(per_second: u64, unit: u64) -> Option<Self> {
        let mut meter = Meter { per_second, burst_ns: BURST_NS, full_at_ns: AtomicI64::new(i64::MIN) };
        (per_second > 0).then(|| {
            meter.burst_ns = BURST_NS.max(meter.cost_ns(unit));
            meter
        })
    }

    fn cost_ns(&self, amount: u64) -> i64 {
        let ns = (u128::from(amount) * SECOND_NS as u128).div_ceil(u128::from(self.per_second));
        i64::try_from(ns).unwrap_or(i64::MAX / 4)
    }

    fn missing_ns(&self, now_ns: i64) -> i64 {
        self.full_at_ns.load(Relaxed).saturating_sub(now_ns).max(0)
    }

    /// The time until the bucket is no longer empty.
    fn debt_ns(&self, now_ns: i64) -> i64 {
        (self.missing_ns(now_ns) - self.burst_ns).max(0)
    }

    fn available(&self, now_ns: i64) -> u64 {
        let left_ns = (self.burst_ns - self.missing_ns(now_ns)).max(0);
        (left_ns as u128 * u128::from(self.per_second) / SECOND_NS as u128) as u64
    }

    /// Takes tokens whether or not they are there, and returns the time until they would have been.
    fn charge(&self, amount: u64, now_ns: i64) -> i64 {
        let cost_ns = self.cost_ns(amount);
        let from_ns = self.advance(now_ns, |from_ns| Some(from_ns.saturating_add(cost_ns))).unwrap_or(now_ns);
        (from_ns - now_ns).saturating_sub(self.burst_ns - cost_ns.min(self.burst_ns)).max(0)
    }

    /// Takes the tokens that are there, up to `amount_max`; None if there are fewer than `amount_min`.
    fn take(&self, amount_min: u64, amount_max: u64, now_ns: i64) -> Option<u64> {
        let mut taken = 0;
        self.advance(now_ns, |from_ns| {
            let left_ns = (self.burst_ns - (from_ns - now_ns)).max(0);
            let there = (left_ns as u128 * u128::from(self.per_second) / SECOND_NS as u128) as u64;
            taken = there.min(amount_max);
            (taken >= amount_min).then(|| from_ns.saturating_add(self.cost_ns(taken)))
        })?;
        Some(taken)
    }

    /// Returns tokens that were taken and not used. Rounds down, so that none are created.
    fn give_back(&self, amount: u64) {
        if amount > 0 {
            self.full_at_ns.fetch_sub(self.cost_ns(amount) - 1, Relaxed);
        }
    }

    /// Moves `full_at` on from its value or from now, whichever is later; returns that.
    fn advance(&self, now_ns: i64, to: impl FnMut(i64) -> Option<i64>) -> Option<i64> {
        let mut to = to;
        let moved = self.full_at_ns.fetch_update(Relaxed, Relaxed, |full_at_ns| to(full_at_ns.max(now_ns)));
        moved.ok().map(|full_at_ns| full_at_ns.max(now_ns))
    }
}

/// The limit of one topic or group, in messages, bytes or both. All its senders or consumers share it. It lives as long as
/// its rates stay the same, whatever else changes about the topic or group.
#[derive(Debug)]
pub struct Limit {
    messages: Option<Meter>,
    bytes: Option<Meter>,
}

impl Limit {
    pub fn new(rates: Rates) -> Option<Arc<Self>> {
        let limit = Limit { messages: Meter::new(rates.messages, 1), bytes: Meter::new(rates.bytes, 1) };
        (rates != Rates::default()).then(|| Arc::new(limit))
    }

    pub fn rates(&self) -> Rates {
        let per_second = |meter: &Option<Meter>| meter.as_ref().map_or(0, |meter| meter.per_second);
        Rates { messages: per_second(&self.messages), bytes: per_second(&self.bytes) }
    }

    /// The limit to count with: the old one if the new one has the same rates.
    pub fn succeed(new: Option<Arc<Self>>, old: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        match (&new, old) {
            (Some(wanted), Some(old)) if wanted.rates() == old.rates() => Some(Arc::clone(old)),
            _ => new,
        }
    }

    /// The time until everything that passed already is paid for.
    pub fn debt_ns(&self, now_ns: i64) -> i64 {
        self.meters().map(|meter| meter.debt_ns(now_ns)).max().unwrap_or(0)
    }

    /// Counts what passes, and returns the time that it should have waited.
    pub fn charge(&self, messages: u64, bytes: u64, now_ns: i64) -> i64 {
        let wait_ns = |meter: &Option<Meter>, amount| meter.as_ref().map_or(0, |m| m.charge(amount, now_ns));
        wait_ns(&self.messages, messages).max(wait_ns(&self.bytes, bytes))
    }

    /// Takes a share: the messages and bytes that may be read now. None if it is too early for any.
    pub fn take(&self, count_max: usize, bytes_max: usize, now_ns: i64) -> Option<(usize, usize)> {
        let mut bytes = bytes_max;
        if let Some(meter) = &self.bytes {
            // The size is not known before the read, so bytes are charged after it.
            let there = meter.available(now_ns);
            if there < (meter.per_second / SHARES_PER_SECOND).clamp(1, bytes_max.max(1) as u64) {
                return None;
            }
            bytes = bytes.min(usize::try_from(there).unwrap_or(usize::MAX));
        }
        let Some(meter) = &self.messages else {
            return Some((count_max, bytes));
        };
        let wanted = count_max.max(1) as u64;
        let share = (meter.per_second / SHARES_PER_SECOND).clamp(1, wanted);
        meter.take(share, wanted, now_ns).map(|count| (count as usize, bytes))
    }

    /// Returns the unused part of a share and charges the bytes that were read.
    pub fn finish_share(&self, count_unused: usize, bytes_used: usize, now_ns: i64) {
        if let Some(meter) = &self.messages {
            meter.give_back(count_unused as u64);
        }
        if let Some(meter) = &self.bytes {
            meter.charge(bytes_used as u64, now_ns);
        }
    }

    fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.messages.iter().chain(&self.bytes)
    }
}

#[cfg(test)]
mod tests;
