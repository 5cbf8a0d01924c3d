//! Wrong answers are reported, and a stream holds no more of right ones than its limits allow.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use metaq_wire::{Encoding, FRAME_BYTES_MAX, FrameEncoder, Header, next_frame};
use proptest::prelude::*;

use super::*;
use crate::consume::records::Records;
use crate::consume::testing::TestRecord;
use crate::net::request::Reply;

const LIMITS: PullLimits = PullLimits {
    count_max: 10,
    bytes_max: 1 << 20,
    refill_percent: 50,
    pull_count_max: 8,
    pull_bytes_max: 1 << 18,
    answer_timeout: Duration::from_secs(15),
    idle_pause: Duration::from_millis(100),
};

fn record(queue_offset: i64, properties: &[u8]) -> Vec<u8> {
    record_with(queue_offset, properties, 0)
}

fn record_with(queue_offset: i64, properties: &[u8], system_flag: i32) -> Vec<u8> {
    let body = format!("body {queue_offset}").into_bytes();
    TestRecord { body: &body, properties, system_flag, ..TestRecord::at(queue_offset) }.encode()
}

fn records(offsets: impl IntoIterator<Item = i64>) -> Vec<u8> {
    offsets.into_iter().flat_map(|queue_offset| record(queue_offset, b"")).collect()
}

fn reply(code: i32, next_offset: &str, body: &[u8]) -> Reply {
    let mut out = Vec::new();
    let mut frame = FrameEncoder::response(&mut out, Encoding::Binary, code, 7);
    frame.remark("because").field("nextBeginOffset", next_offset).field("suggestWhichBrokerId", "0");
    frame.finish(body.len()).unwrap();
    out.extend_from_slice(body);
    let whole = Bytes::from(out);
    let frame = next_frame(&whole, FRAME_BYTES_MAX).unwrap().unwrap();
    let header = Header::parse(frame.encoding, frame.header).unwrap();
    Reply::new(&whole, &frame, &header)
}

fn read(code: i32, next_offset: &str, body: &[u8], from_offset: i64) -> Answer {
    Answer::read(&reply(code, next_offset, body), &PullQuery::default(), from_offset)
}

fn source(address: &str) -> PullSource {
    PullSource { address: Arc::from(address), broker_id: 0 }
}

fn offsets(chunks: &[PullChunk]) -> Vec<(u64, i64)> {
    let mut found = Vec::new();
    for chunk in chunks {
        for at in &chunk.positions {
            let record = metaq_wire::Record::decode(&chunk.body[*at as usize..]).unwrap();
            found.push((chunk.queue, record.queue_offset));
        }
    }
    found
}

fn prefetch(queues: &[u64]) -> Prefetch {
    let mut prefetch = Prefetch::default();
    for queue in queues {
        prefetch.begin(*queue, QueuePrefetch::new(source("b:1"), 0, false));
    }
    prefetch
}

#[test]
fn an_answer_is_read_as_its_code_says() {
    let body = records(5..8);
    let Answer::Records { records: found, next_offset: 8, suggested_broker_id: 0 } = read(0, "8", &body, 5)
    else {
        panic!("three records");
    };
    assert_eq!(found.positions.len(), 3);
    for code in [19, 20] {
        let Answer::Records { records: found, .. } = read(code, "9", &body, 5) else {
            panic!("nothing found")
        };
        assert_eq!(found, Records { body: Bytes::new(), positions: vec![], compressed: vec![] });
    }
    assert_eq!(read(21, "2", b"", 5), Answer::Moved { next_offset: 2 });
    assert_eq!(read(24, "2", b"", 5), Answer::Refused { code: 24, remark: "because".to_owned() });
    assert!(matches!(read(0, "no number", &body, 5), Answer::Malformed(_)));
    assert!(matches!(read(0, "8", &body[..body.len() - 1], 5), Answer::Malformed(_)));
}

#[test]
fn older_records_than_asked_for_are_not_taken() {
    let Answer::Records { records, .. } = read(0, "8", &records(3..8), 6) else { panic!("two records") };
    assert_eq!(records.positions.len(), 2);
}

#[test]
fn tags_are_compared_themselves() {
    let wanted = PullQuery { tags: vec!["A".to_owned()], ..PullQuery::default() };
    let body = [record(0, b"TAGS\x01A\x02"), record(1, b"TAGS\x01B\x02"), record(2, b"")].concat();
    let Answer::Records { records, next_offset: 3, .. } = Answer::read(&reply(0, "3", &body), &wanted, 0)
    else {
        panic!("one record");
    };
    assert_eq!(records.positions, [0]);
}

#[test]
fn a_queue_is_pulled_while_half_of_it_is_free() {
    let mut prefetch = prefetch(&[1]);
    let next = |prefetch: &Prefetch| {
        prefetch.next_pull(1, &LIMITS).unwrap().map(|next| (next.queue_offset, next.count_max))
    };
    assert_eq!(next(&prefetch), Some((0, 8)));
    prefetch.put(1, read(0, "5", &records(0..5), 0));
    assert_eq!(next(&prefetch), Some((5, 5)));
    prefetch.put(1, read(0, "10", &records(5..10), 5));
    assert_eq!(next(&prefetch), None);
    assert_eq!(prefetch.take(4).iter().map(|chunk| chunk.positions.len()).sum::<usize>(), 4);
    assert_eq!(next(&prefetch), None);
    assert_eq!(prefetch.get(1).unwrap().position(), 4);
    prefetch.take(1);
    assert_eq!(next(&prefetch), Some((10, 5)));
}

#[test]
fn the_setting_says_how_much_must_be_free_before_a_queue_is_pulled_again() {
    let mut prefetch = prefetch(&[1]);
    prefetch.put(1, read(0, "8", &records(0..8), 0));
    let is_pulled =
        |refill_percent| prefetch.next_pull(1, &PullLimits { refill_percent, ..LIMITS }).unwrap().is_some();
    assert_eq!([0, 20, 21, 100, 900].map(is_pulled), [true, true, false, false, false]);
}

#[test]
fn all_queues_together_hold_no_more_bytes_than_allowed() {
    let body = records(0..8);
    let limits = PullLimits { count_max: 1000, bytes_max: 4 * body.len(), ..LIMITS };
    let queues: Vec<u64> = (0..40).collect();
    let mut prefetch = prefetch(&queues);
    for _ in 0..10 {
        for queue in &queues {
            if let Some(NextPull { queue_offset: from, bytes_max: bytes, .. }) =
                prefetch.next_pull(*queue, &limits).unwrap()
            {
                assert!(bytes <= limits.bytes_max / queues.len());
                // A broker returns at least one message.
                prefetch.put(*queue, read(0, &(from + 1).to_string(), &records(from..from + 1), from));
            }
        }
    }
    let held: usize = prefetch.take(10_000).iter().map(|chunk| chunk.body.len()).sum();
    assert!(held <= limits.bytes_max + queues.len() * records(0..1).len(), "{held} bytes are held");
    prefetch.end_all();
    prefetch.begin(1, QueuePrefetch::new(source("b:1"), 0, false));
    prefetch.put(1, read(0, "8", &body, 0));
    assert!(prefetch.next_pull(1, &limits).unwrap().is_some(), "a single queue may use the whole limit");
}

#[test]
fn nothing_is_taken_after_a_compressed_message() {
    let mut prefetch = prefetch(&[1, 2]);
    let mixed: Vec<u8> = (0..6).flat_map(|at| record_with(at, b"", i32::from(at % 3 == 1))).collect();
    prefetch.put(1, read(0, "6", &mixed, 0));
    prefetch.put(2, read(0, "2", &records(0..2), 0));
    assert_eq!(offsets(&prefetch.take(9)), [(1, 0), (1, 1)]);
    assert_eq!(offsets(&prefetch.take(9)), [(2, 0), (2, 1), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(offsets(&prefetch.take(9)), [(1, 5)]);
    prefetch.put(1, read(0, "12", &mixed, 0));
    assert_eq!(offsets(&prefetch.take(1)), [(1, 0)]);
}

#[test]
fn a_queue_about_which_something_is_to_be_decided_stands_still() {
    let mut prefetch = prefetch(&[1, 2]);
    assert_eq!(prefetch.put(1, read(21, "3", b"", 0)), Change { messages: false, event: true });
    assert!(prefetch.next_pull(1, &LIMITS).unwrap().is_none());
    assert!(prefetch.next_pull(2, &LIMITS).unwrap().is_some());
    assert_eq!(prefetch.events(), [PullEvent::Moved { queue: 1, next_offset: 3, is_empty: true }]);
    assert!(prefetch.events().is_empty());
    prefetch.resume(1, source("c:2"), Some(3));
    let next = prefetch.next_pull(1, &LIMITS).unwrap().unwrap();
    assert_eq!((&*next.source.address, next.queue_offset), ("c:2", 3));
    prefetch.put_failure(1, "gone".to_owned());
    prefetch.end(1);
    assert!(prefetch.events().is_empty(), "a queue that has ended has no events");
    assert_eq!(prefetch.put(1, read(0, "1", &records(0..1), 0)), Change::default());
}

#[test]
fn what_is_paused_is_kept_and_the_longest_waiting_comes_first() {
    let mut prefetch = prefetch(&[1, 2]);
    for queue in [1, 2] {
        prefetch.put(queue, read(0, "4", &records(0..4), 0));
    }
    assert_eq!(offsets(&prefetch.take(2)), [(1, 0), (1, 1)]);
    assert_eq!(offsets(&prefetch.take(5)), [(2, 0), (2, 1), (2, 2), (2, 3), (1, 2)]);
    assert!(!prefetch.pause(1, true));
    assert!(prefetch.take(5).is_empty());
    assert!(prefetch.pause(1, false));
    assert_eq!(offsets(&prefetch.take(5)), [(1, 3)]);
}

#[test]
fn a_reset_drops_what_nobody_has_taken_and_needs_no_decision() {
    let mut prefetch = prefetch(&[1]);
    prefetch.put(1, read(0, "8", &records(5..8), 5));
    assert_eq!(offsets(&prefetch.take(1)), [(1, 5)]);
    let mut answer = reply(21, "100", b"");
    answer.remark = Some("OFFSET_RESET".to_owned());
    assert_eq!(prefetch.put(1, Answer::read(&answer, &PullQuery::default(), 8)), Change::default());
    assert_eq!((prefetch.take(9), prefetch.events()), (vec![], vec![]));
    assert_eq!(prefetch.get(1).unwrap().position(), 100);
    assert_eq!(prefetch.next_pull(1, &LIMITS).unwrap().unwrap().queue_offset, 100);
    prefetch.put(1, read(0, "102", &records(100..102), 100));
    assert_eq!(offsets(&prefetch.take(9)), [(1, 100), (1, 101)]);
}

#[test]
fn a_suggested_replica_is_told_of_once() {
    let mut prefetch = prefetch(&[1]);
    let answer = Answer::Records {
        records: Records { body: Bytes::new(), positions: vec![], compressed: vec![] },
        next_offset: 0,
        suggested_broker_id: 1,
    };
    assert!(prefetch.put(1, answer.clone()).event);
    prefetch.resume(1, PullSource { address: Arc::from("b:2"), broker_id: 1 }, None);
    assert!(!prefetch.put(1, answer).event);
}

#[test]
fn a_forked_process_closes_without_the_lock_that_another_thread_holds_for_ever() {
    let mut network = Network::start(crate::NetworkSettings::TEST).unwrap();
    Arc::get_mut(&mut network).unwrap().process += 1;
    let stream = PullStream::new(network, LIMITS).unwrap();
    let held = stream.prefetch.lock();
    let (sender, ended) = std::sync::mpsc::channel();
    let there = Arc::clone(&stream);
    std::thread::spawn(move || {
        there.close();
        drop(there);
        sender.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(held);
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic(
        code in prop_oneof![Just(0), Just(19), Just(20), Just(21), any::<i32>()],
        next_offset in "-?[0-9]{0,25}",
        mut body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            prop::collection::vec(0i64..20, 0..5).prop_map(records),
        ],
        at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        if !body.is_empty() {
            let place = at.index(body.len());
            body[place] = byte;
            body.truncate(cut.index(body.len()) + 1);
        }
        let mut prefetch = prefetch(&[1]);
        prefetch.put(1, read(code & 0x7fff, &next_offset, &body, 0));
        for chunk in prefetch.take(100) {
            for at in chunk.positions {
                prop_assert!(metaq_wire::Record::decode(&chunk.body[at as usize..]).is_ok());
            }
        }
    }

    #[test]
    fn every_message_comes_once_and_in_the_order_of_its_queue(
        answers in prop::collection::vec((0u64..3, 1i64..6), 1..20),
        takes in prop::collection::vec(1usize..7, 1..40),
    ) {
        let mut prefetch = prefetch(&[0, 1, 2]);
        let mut sent = [0i64; 3];
        let mut seen: [Vec<i64>; 3] = Default::default();
        let mut takes = takes.into_iter().cycle();
        for (queue, count) in answers {
            let from = sent[queue as usize];
            sent[queue as usize] += count;
            let next_offset = sent[queue as usize].to_string();
            prefetch.put(queue, read(0, &next_offset, &records(from..from + count), from));
            for (queue, queue_offset) in offsets(&prefetch.take(takes.next().unwrap_or(1))) {
                seen[queue as usize].push(queue_offset);
            }
            for queue in 0..3u64 {
                let position = prefetch.get(queue).unwrap().position();
                prop_assert_eq!(position, seen[queue as usize].len() as i64);
            }
        }
        for (queue, queue_offset) in offsets(&prefetch.take(1000)) {
            seen[queue as usize].push(queue_offset);
        }
        for queue in 0..3 {
            prop_assert_eq!(&seen[queue], &(0..sent[queue]).collect::<Vec<_>>());
        }
    }
}
