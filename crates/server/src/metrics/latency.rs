//! How long requests take, by request and response code.
//!
//! The requests of one pass share the time of the pass, so that it takes two looks at the clock and not two for each
//! request. Threads add to counters of their own as long as there are enough of them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::codes::{HOT_CODES, response_code};
use crate::net::counts::Count;

/// The upper bounds of the buckets, in milliseconds.
pub const TIME_BOUNDS: [u64; 9] = [1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000];

/// Response codes of hot requests. Any other one is counted like a request of Python's.
const RESPONSES: [i32; 20] = [
    response_code::SUCCESS,
    response_code::SYSTEM_ERROR,
    response_code::SYSTEM_BUSY,
    response_code::FLUSH_DISK_TIMEOUT,
    response_code::FLUSH_SLAVE_TIMEOUT,
    response_code::MESSAGE_ILLEGAL,
    response_code::SERVICE_NOT_AVAILABLE,
    response_code::NO_PERMISSION,
    response_code::TOPIC_NOT_EXIST,
    response_code::PULL_NOT_FOUND,
    response_code::PULL_RETRY_IMMEDIATELY,
    response_code::PULL_OFFSET_MOVED,
    response_code::QUERY_NOT_FOUND,
    response_code::SUBSCRIPTION_PARSE_FAILED,
    response_code::SUBSCRIPTION_NOT_EXIST,
    response_code::SUBSCRIPTION_NOT_LATEST,
    response_code::SUBSCRIPTION_GROUP_NOT_EXIST,
    response_code::INVALID_PARAMETER,
    response_code::TRANSACTION_STATE_UNKNOWN,
    response_code::ILLEGAL_OPERATION,
];
const SLOTS: usize = HOT_CODES.len() * RESPONSES.len() * 2;
const SHARDS: usize = 4;
/// Pairs of codes that are counted besides those of hot requests: a client chooses the request code.
const OTHERS_MAX: usize = 1_000;

/// A kind of request and its answer; each kind has a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exchange {
    pub request_code: i32,
    pub response_code: i32,
    /// The request was held until there was something to answer.
    pub is_long_polling: bool,
}

impl Exchange {
    /// Its place among the hot requests.
    fn slot(self) -> Option<usize> {
        let request = HOT_CODES.iter().position(|code| *code == self.request_code)?;
        let response = RESPONSES.iter().position(|code| *code == self.response_code)?;
        Some((request * RESPONSES.len() + response) * 2 + usize::from(self.is_long_polling))
    }

    fn at(slot: usize) -> Self {
        Exchange {
            request_code: HOT_CODES[slot / 2 / RESPONSES.len()],
            response_code: RESPONSES[slot / 2 % RESPONSES.len()],
            is_long_polling: slot % 2 == 1,
        }
    }
}

/// How often each time was taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    pub counts: [u64; TIME_BOUNDS.len() + 1],
    pub sum_ms: u64,
}

impl Times {
    fn add(&mut self, other: &Times) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ms += other.sum_ms;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

fn time_place(elapsed_ms: u64) -> usize {
    TIME_BOUNDS.iter().position(|bound| elapsed_ms <= *bound).unwrap_or(TIME_BOUNDS.len())
}

#[derive(Default)]
struct Histogram {
    counts: [Count; TIME_BOUNDS.len() + 1],
    sum_ms: Count,
}

impl Histogram {
    fn add(&self, requests: u64, elapsed_ms: u64) {
        self.counts[time_place(elapsed_ms)].add(requests);
        if elapsed_ms > 0 {
            self.sum_ms.add(requests * elapsed_ms);
        }
    }

    fn times(&self) -> Times {
        Times { counts: std::array::from_fn(|place| self.counts[place].get()), sum_ms: self.sum_ms.get() }
    }
}

type Shard = Box<[Histogram]>;

/// The times of all requests since the plane was built.
pub struct Latencies {
    hot: [Shard; SHARDS],
    others: Mutex<BTreeMap<Exchange, Times>>,
}

impl Default for Latencies {
    fn default() -> Self {
        let shard = |_| (0..SLOTS).map(|_| Histogram::default()).collect();
        Latencies { hot: std::array::from_fn(shard), others: Mutex::default() }
    }
}

impl Latencies {
    pub fn record(&self, exchange: Exchange, elapsed_ms: u64) {
        match exchange.slot() {
            Some(slot) => self.add(slot, 1, elapsed_ms),
            None => self.record_other(exchange, elapsed_ms),
        }
    }

    fn add(&self, slot: usize, requests: u64, elapsed_ms: u64) {
        self.hot[own_shard()][slot].add(requests, elapsed_ms);
    }

    #[cold]
    fn record_other(&self, exchange: Exchange, elapsed_ms: u64) {
        let mut others = self.others.lock();
        if others.len() >= OTHERS_MAX && !others.contains_key(&exchange) {
            return;
        }
        let times = others.entry(exchange).or_default();
        times.counts[time_place(elapsed_ms)] += 1;
        times.sum_ms += elapsed_ms;
    }

    /// The exchanges that happened, with their times.
    pub fn all(&self) -> Vec<(Exchange, Times)> {
        let mut all: Vec<_> = self.others.lock().iter().map(|(of, times)| (*of, *times)).collect();
        for slot in 0..SLOTS {
            let mut times = Times::default();
            for shard in &self.hot {
                times.add(&shard[slot].times());
            }
            if times.count() > 0 {
                all.push((Exchange::at(slot), times));
            }
        }
        all.sort_unstable_by_key(|(exchange, _)| *exchange);
        all
    }
}

/// The shard of this thread.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        own.get()
    })
}

/// The requests of one pass that were answered in it.
#[derive(Default)]
pub struct Answered {
    last: Option<(Exchange, u64)>,
    before: Vec<(Exchange, u64)>,
}

impl Answered {
    pub fn note(&mut self, exchange: Exchange) {
        match &mut self.last {
            Some((last, requests)) if *last == exchange => *requests += 1,
            last => self.before.extend(last.replace((exchange, 1))),
        }
    }

    /// Every kind of them, with its number; a kind may come several times.
    pub fn all(&self) -> impl Iterator<Item = (Exchange, u64)> {
        self.before.iter().chain(&self.last).copied()
    }

    /// Records them all with the time of the pass.
    pub fn record(&mut self, latencies: &Latencies, elapsed_ms: u64) {
        let Some(last) = self.last.take() else {
            return;
        };
        for (exchange, requests) in self.before.drain(..).chain([last]) {
            match exchange.slot() {
                Some(slot) => latencies.add(slot, requests, elapsed_ms),
                None => latencies.record_other(exchange, elapsed_ms),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Exchange = Exchange { request_code: 310, response_code: 0, is_long_polling: false };
    const PULLED: Exchange = Exchange { request_code: 11, response_code: 0, is_long_polling: false };

    #[test]
    fn every_slot_stands_for_one_exchange() {
        for slot in 0..SLOTS {
            assert_eq!(Exchange::at(slot).slot(), Some(slot));
        }
    }

    #[test]
    fn the_requests_of_a_pass_share_its_time() {
        let (latencies, mut answered) = (Latencies::default(), Answered::default());
        for exchange in [SENT, SENT, PULLED, SENT] {
            answered.note(exchange);
        }
        answered.record(&latencies, 4);
        answered.record(&latencies, 9);
        let all = latencies.all();
        assert_eq!(
            all.iter().map(|(of, times)| (of.request_code, times.count())).collect::<Vec<_>>(),
            [(11, 1), (310, 3)]
        );
        assert_eq!((all[1].1.counts[2], all[1].1.sum_ms), (3, 12));
    }

    #[test]
    fn requests_of_python_are_counted_up_to_a_limit() {
        let latencies = Latencies::default();
        for request_code in 0..5_000 {
            latencies.record(Exchange { request_code, response_code: 3, is_long_polling: false }, 1);
        }
        assert_eq!(latencies.all().len(), OTHERS_MAX);
    }
}
