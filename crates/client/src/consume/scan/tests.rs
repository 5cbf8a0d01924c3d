//! Ranges read from brokers that answer in small pieces, leave things out, or end early.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, Header, NewRecord, Record, body_crc, next_frame};
use proptest::prelude::*;

use super::*;
use crate::net::network::NetworkSettings;

const LIMITS: ScanLimits =
    ScanLimits { held_bytes_max: 4 << 10, pull_count_max: 16, pull_bytes_max: 1 << 18 };

fn record(queue_offset: i64) -> Vec<u8> {
    let host = SocketAddr::from(([127, 0, 0, 1], 10_911));
    let new = NewRecord {
        topic: b"orders",
        queue_id: 1,
        flag: 0,
        system_flag: 0,
        born_timestamp_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body_crc: body_crc(b"body"),
        body: b"body",
        properties: [b"", b"", b""],
    };
    let mut bytes = vec![0; new.size()];
    new.write(&mut bytes, queue_offset, 1000 + queue_offset, 2);
    bytes
}

/// A queue with messages up to `end`, of which a broker gives at most `count_max` at once and looks at `scan` at least.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: i64,
    end: i64,
    count_max: i64,
    scan: i64,
    /// Only every so-manieth is wanted.
    every: i64,
}

impl Queue {
    fn answer(&self, from: i64, count: i64) -> (i32, i64, Vec<u8>) {
        if from < self.first || from > self.end {
            return (21, self.first.max(from.min(self.end)), Vec::new());
        }
        if from == self.end {
            return (19, from, Vec::new());
        }
        let scan_end = (from + count.max(self.scan)).min(self.end);
        let (mut next, mut found, mut body) = (from, 0, Vec::new());
        while next < scan_end && found < count.min(self.count_max) {
            if next % self.every == 0 {
                body.extend(record(next));
                found += 1;
            }
            next += 1;
        }
        (if found == 0 { 20 } else { 0 }, next, body)
    }
}

/// Answers pulls of one connection, each by itself, until it is closed.
fn serve(queue: Queue) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            while let Some(frame) = next_frame(&input, FRAME_BYTES_MAX).unwrap() {
                let header = Header::parse(frame.encoding, frame.header).unwrap();
                let field = |name: &str| -> i64 { header.field(name).unwrap().unwrap().parse().unwrap() };
                let (code, next, body) = queue.answer(field("queueOffset"), field("maxMsgNums"));
                let mut out = Vec::new();
                let mut answer = FrameEncoder::response(&mut out, Encoding::Binary, code, header.opaque);
                answer.field("nextBeginOffset", &next.to_string());
                answer.finish(body.len()).unwrap();
                out.extend(body);
                if stream.write_all(&out).is_err() {
                    return;
                }
                let size = frame.size;
                input.drain(..size);
            }
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(read) => input.extend(&chunk[..read]),
            }
        }
    });
    address
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Everything a scan gives, and why it ended.
fn all(scan: &Scan) -> (Vec<i64>, i64, ScanEnd) {
    let (mut offsets, mut covered) = (Vec::new(), 0);
    loop {
        let (portions, end) = scan.take_until(7, 1 << 20, soon());
        assert!(!portions.is_empty() || end.is_some(), "nothing came in time");
        for portion in portions {
            covered += portion.covered.end - portion.covered.start;
            for at in portion.places {
                offsets.push(Record::decode(&portion.body[at as usize..]).unwrap().queue_offset);
            }
        }
        if let Some(end) = end {
            return (offsets, covered, end);
        }
    }
}

fn scan(queue: Queue, range: Range<i64>) -> (Vec<i64>, i64, ScanEnd) {
    let network = Network::start(NetworkSettings::default()).unwrap();
    let scan = Scan::begin(&network, PullWanted::default(), &serve(queue), range, LIMITS);
    all(&scan)
}

const PLAIN: Queue = Queue { first: 0, end: 100, count_max: 1000, scan: 0, every: 1 };

#[test]
fn a_range_that_the_queue_does_not_hold_ends_where_it_begins_to_lack() {
    let (offsets, _, end) = scan(Queue { first: 40, ..PLAIN }, 30..60);
    assert_eq!((offsets.len(), end), (0, ScanEnd::Moved { queue_offset: 30, next_offset: 40 }));
    let (offsets, _, end) = scan(PLAIN, 90..120);
    assert_eq!(offsets, (90..100).collect::<Vec<_>>());
    assert_eq!(end, ScanEnd::Stalled { queue_offset: 100 });
}

#[test]
fn a_broker_that_is_not_there_is_told_of() {
    let network = Network::start(NetworkSettings::default()).unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let scan = Scan::begin(&network, PullWanted::default(), &gone, 5..9, LIMITS);
    let (offsets, _, end) = all(&scan);
    assert_eq!(offsets, []);
    assert!(matches!(end, ScanEnd::Failed { queue_offset: 5, is_malformed: false, .. }), "{end:?}");
}

#[test]
fn who_waits_hears_that_the_network_was_closed() {
    let network = Network::start(NetworkSettings::default()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let scan = Scan::begin(&network, PullWanted::default(), &address, 0..9, LIMITS);
    network.close();
    assert_eq!(all(&scan).2, ScanEnd::Closed);
}

#[test]
fn no_more_is_read_ahead_than_may_be_held() {
    let network = Network::start(NetworkSettings::default()).unwrap();
    let queue = Queue { end: 100_000, ..PLAIN };
    let scan = Scan::begin(&network, PullWanted::default(), &serve(queue), 0..100_000, LIMITS);
    let deadline = soon();
    while scan.shared.held.lock().bytes == 0 {
        assert!(Instant::now() < deadline, "nothing is read");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(200));
    let held = scan.shared.held.lock().bytes;
    let answer_bytes = LIMITS.pull_count_max * record(0).len();
    assert!(held > 0 && held < LIMITS.held_bytes_max + answer_bytes, "{held} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_wanted_message_of_the_range_comes_once_and_in_order(
        from in 0i64..50, length in 0i64..300, behind in 0i64..50,
        count_max in 1i64..40, wide in prop_oneof![Just(0i64), 0i64..100], every in 1i64..9,
    ) {
        let queue = Queue { first: 0, end: from + length + behind, count_max, scan: wide, every };
        let (offsets, covered, end) = scan(queue, from..from + length);
        let expected: Vec<i64> = (from..from + length).filter(|offset| offset % every == 0).collect();
        prop_assert_eq!(offsets, expected);
        prop_assert_eq!(covered, length);
        prop_assert_eq!(end, ScanEnd::Done);
    }
}
