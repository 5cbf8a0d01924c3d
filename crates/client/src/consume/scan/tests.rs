//! Ranges read from brokers that answer in small pieces, leave things out, or end early.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;

use metaq_wire::Record;
use proptest::prelude::*;

use super::*;
use crate::consume::testing::{TestQueue, TestRecord};
use crate::net::network::NetworkSettings;

const LIMITS: ScanLimits = ScanLimits {
    held_bytes_max: 4 << 10,
    pulls_in_flight_max: 6,
    pull_count_max: 16,
    pull_bytes_max: 1 << 18,
    pull_timeout: Duration::from_secs(20),
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Reads a scan to its end.
fn all(scan: &Scan) -> (Vec<i64>, i64, ScanEnd) {
    let (mut offsets, mut covered) = (Vec::new(), 0);
    loop {
        let (chunks, end) = scan.take_until(7, 1 << 20, soon());
        assert!(!chunks.is_empty() || end.is_some(), "nothing came in time");
        for chunk in chunks {
            covered += chunk.covered.end - chunk.covered.start;
            for at in chunk.positions {
                offsets.push(Record::decode(&chunk.body[at as usize..]).unwrap().queue_offset);
            }
        }
        if let Some(end) = end {
            return (offsets, covered, end);
        }
    }
}

fn scan(queue: TestQueue, range: Range<i64>) -> (Vec<i64>, i64, ScanEnd) {
    let network = Network::start(NetworkSettings::TEST).unwrap();
    let scan = Scan::begin(&network, PullQuery::default(), &queue.serve(), range, LIMITS);
    all(&scan)
}

const PLAIN: TestQueue = TestQueue { first: 0, end: 100, count_max: 1000, scan: 0, every: 1 };

#[test]
fn a_range_that_the_queue_does_not_hold_ends_where_it_begins_to_lack() {
    let (offsets, _, end) = scan(TestQueue { first: 40, ..PLAIN }, 30..60);
    assert_eq!((offsets.len(), end), (0, ScanEnd::Moved { queue_offset: 30, next_offset: 40 }));
    let (offsets, _, end) = scan(PLAIN, 90..120);
    assert_eq!(offsets, (90..100).collect::<Vec<_>>());
    assert_eq!(end, ScanEnd::Stalled { queue_offset: 100 });
}

#[test]
fn a_broker_that_is_not_there_is_told_of() {
    let network = Network::start(NetworkSettings::TEST).unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let scan = Scan::begin(&network, PullQuery::default(), &gone, 5..9, LIMITS);
    let (offsets, _, end) = all(&scan);
    assert_eq!(offsets, []);
    assert!(matches!(end, ScanEnd::Failed { queue_offset: 5, is_malformed: false, .. }), "{end:?}");
}

#[test]
fn who_waits_hears_that_the_network_was_closed() {
    let network = Network::start(NetworkSettings::TEST).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let scan = Scan::begin(&network, PullQuery::default(), &address, 0..9, LIMITS);
    network.close();
    assert_eq!(all(&scan).2, ScanEnd::Closed);
}

#[test]
fn no_more_is_read_ahead_than_may_be_held() {
    let network = Network::start(NetworkSettings::TEST).unwrap();
    let queue = TestQueue { end: 100_000, ..PLAIN };
    let scan = Scan::begin(&network, PullQuery::default(), &queue.serve(), 0..100_000, LIMITS);
    let mut held = scan.shared.held.lock();
    while held.bytes < LIMITS.held_bytes_max {
        assert!(!scan.shared.arrived.wait_until(&mut held, soon()).timed_out(), "nothing is read");
    }
    drop(held);
    // While another scan on the same network reads its whole range, this one has every chance to read too much.
    let other = Scan::begin(&network, PullQuery::default(), &queue.serve(), 0..2_000, LIMITS);
    assert_eq!(all(&other).2, ScanEnd::Done);
    let bytes = scan.shared.held.lock().bytes;
    let answer_bytes = LIMITS.pull_count_max * TestRecord::at(0).encode().len();
    assert!(bytes < LIMITS.held_bytes_max + answer_bytes, "{bytes} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_wanted_message_of_the_range_comes_once_and_in_order(
        from in 0i64..50, length in 0i64..300, behind in 0i64..50,
        count_max in 1i64..40, wide in prop_oneof![Just(0i64), 0i64..100], every in 1i64..9,
    ) {
        let queue = TestQueue { first: 0, end: from + length + behind, count_max, scan: wide, every };
        let (offsets, covered, end) = scan(queue, from..from + length);
        let expected: Vec<i64> = (from..from + length).filter(|offset| offset % every == 0).collect();
        prop_assert_eq!(offsets, expected);
        prop_assert_eq!(covered, length);
        prop_assert_eq!(end, ScanEnd::Done);
    }
}
