//! Answers that lie, and what a stream holds of answers that do not.
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
    Answer::read(&reply(code, next_offset, body), &PullWanted::default(), from_offset)
}

fn place(address: &str) -> PullPlace {
    PullPlace { address: Arc::from(address), broker_id: 0 }
}

fn offsets(portions: &[PullPortion]) -> Vec<(u64, i64)> {
    let mut found = Vec::new();
    for portion in portions {
        for at in &portion.positions {
            let record = metaq_wire::Record::decode(&portion.body[*at as usize..]).unwrap();
            found.push((portion.queue, record.queue_offset));
        }
    }
    found
}

fn desk(queues: &[u64]) -> Desk {
    let mut desk = Desk::default();
    for queue in queues {
        desk.begin(*queue, Held::new(place("b:1"), 0, false));
    }
    desk
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
    let wanted = PullWanted { tags: vec!["A".to_owned()], ..PullWanted::default() };
    let body = [record(0, b"TAGS\x01A\x02"), record(1, b"TAGS\x01B\x02"), record(2, b"")].concat();
    let Answer::Records { records, next_offset: 3, .. } = Answer::read(&reply(0, "3", &body), &wanted, 0)
    else {
        panic!("one record");
    };
    assert_eq!(records.positions, [0]);
}

#[test]
fn a_queue_is_pulled_while_half_of_it_is_free() {
    let mut desk = desk(&[1]);
    let next = |desk: &Desk| desk.next_pull(1, &LIMITS).unwrap().map(|(_, from, count, _)| (from, count));
    assert_eq!(next(&desk), Some((0, 8)));
    desk.put(1, read(0, "5", &records(0..5), 0));
    assert_eq!(next(&desk), Some((5, 5)));
    desk.put(1, read(0, "10", &records(5..10), 5));
    assert_eq!(next(&desk), None);
    assert_eq!(desk.take(4).iter().map(|portion| portion.positions.len()).sum::<usize>(), 4);
    assert_eq!(next(&desk), None);
    assert_eq!(desk.get(1).unwrap().position(), 4);
    desk.take(1);
    assert_eq!(next(&desk), Some((10, 5)));
}

#[test]
fn the_setting_says_how_much_must_be_free_before_a_queue_is_pulled_again() {
    let mut desk = desk(&[1]);
    desk.put(1, read(0, "8", &records(0..8), 0));
    let is_pulled = |refill_percent| {
        desk.next_pull(1, &PullLimits { refill_percent, ..LIMITS }).unwrap().is_some()
    };
    assert_eq!([0, 20, 21, 100, 900].map(is_pulled), [true, true, false, false, false]);
}

#[test]
fn all_queues_together_hold_no_more_bytes_than_allowed() {
    let body = records(0..8);
    let limits = PullLimits { count_max: 1000, bytes_max: 4 * body.len(), ..LIMITS };
    let queues: Vec<u64> = (0..40).collect();
    let mut desk = desk(&queues);
    for _ in 0..10 {
        for queue in &queues {
            if let Some((_, from, _, bytes)) = desk.next_pull(*queue, &limits).unwrap() {
                assert!(bytes <= limits.bytes_max / queues.len());
                // A broker gives one message at least.
                desk.put(*queue, read(0, &(from + 1).to_string(), &records(from..from + 1), from));
            }
        }
    }
    let held: usize = desk.take(10_000).iter().map(|portion| portion.body.len()).sum();
    assert!(held <= limits.bytes_max + queues.len() * records(0..1).len(), "{held} bytes are held");
    desk.end_all();
    desk.begin(1, Held::new(place("b:1"), 0, false));
    desk.put(1, read(0, "8", &body, 0));
    assert!(desk.next_pull(1, &limits).unwrap().is_some(), "one alone may hold all of it");
}

#[test]
fn nothing_is_taken_after_a_compressed_message() {
    let mut desk = desk(&[1, 2]);
    let mixed: Vec<u8> = (0..6).flat_map(|at| record_with(at, b"", i32::from(at % 3 == 1))).collect();
    desk.put(1, read(0, "6", &mixed, 0));
    desk.put(2, read(0, "2", &records(0..2), 0));
    assert_eq!(offsets(&desk.take(9)), [(1, 0), (1, 1)]);
    assert_eq!(offsets(&desk.take(9)), [(2, 0), (2, 1), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(offsets(&desk.take(9)), [(1, 5)]);
    desk.put(1, read(0, "12", &mixed, 0));
    assert_eq!(offsets(&desk.take(1)), [(1, 0)]);
}

#[test]
fn a_queue_about_which_something_is_to_be_decided_stands_still() {
    let mut desk = desk(&[1, 2]);
    assert_eq!(desk.put(1, read(21, "3", b"", 0)), News { messages: false, event: true });
    assert!(desk.next_pull(1, &LIMITS).unwrap().is_none());
    assert!(desk.next_pull(2, &LIMITS).unwrap().is_some());
    assert_eq!(desk.events(), [PullEvent::Moved { queue: 1, next_offset: 3, is_empty: true }]);
    assert!(desk.events().is_empty());
    desk.resume(1, place("c:2"), Some(3));
    let (place, from, ..) = desk.next_pull(1, &LIMITS).unwrap().unwrap();
    assert_eq!((&*place.address, from), ("c:2", 3));
    desk.put_failure(1, "gone".to_owned());
    desk.end(1);
    assert!(desk.events().is_empty(), "nobody decides for a queue that was given up");
    assert_eq!(desk.put(1, read(0, "1", &records(0..1), 0)), News::default());
}

#[test]
fn what_is_paused_is_kept_and_the_longest_waiting_comes_first() {
    let mut desk = desk(&[1, 2]);
    for queue in [1, 2] {
        desk.put(queue, read(0, "4", &records(0..4), 0));
    }
    assert_eq!(offsets(&desk.take(2)), [(1, 0), (1, 1)]);
    assert_eq!(offsets(&desk.take(5)), [(2, 0), (2, 1), (2, 2), (2, 3), (1, 2)]);
    assert!(!desk.pause(1, true));
    assert!(desk.take(5).is_empty());
    assert!(desk.pause(1, false));
    assert_eq!(offsets(&desk.take(5)), [(1, 3)]);
}

#[test]
fn a_suggested_replica_is_told_of_once() {
    let mut desk = desk(&[1]);
    let answer = Answer::Records {
        records: Records { body: Bytes::new(), positions: vec![], compressed: vec![] },
        next_offset: 0,
        suggested_broker_id: 1,
    };
    assert!(desk.put(1, answer.clone()).event);
    desk.resume(1, PullPlace { address: Arc::from("b:2"), broker_id: 1 }, None);
    assert!(!desk.put(1, answer).event);
}

#[test]
fn a_forked_process_closes_without_the_lock_that_another_thread_holds_for_ever() {
    let mut network = Network::start(crate::NetworkSettings::TEST).unwrap();
    Arc::get_mut(&mut network).unwrap().process += 1;
    let stream = PullStream::new(network, LIMITS).unwrap();
    let held = stream.desk.lock();
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
        let mut desk = desk(&[1]);
        desk.put(1, read(code & 0x7fff, &next_offset, &body, 0));
        for portion in desk.take(100) {
            for at in portion.positions {
                prop_assert!(metaq_wire::Record::decode(&portion.body[at as usize..]).is_ok());
            }
        }
    }

    #[test]
    fn every_message_comes_once_and_in_the_order_of_its_queue(
        answers in prop::collection::vec((0u64..3, 1i64..6), 1..20),
        takes in prop::collection::vec(1usize..7, 1..40),
    ) {
        let mut desk = desk(&[0, 1, 2]);
        let mut sent = [0i64; 3];
        let mut seen: [Vec<i64>; 3] = Default::default();
        let mut takes = takes.into_iter().cycle();
        for (queue, count) in answers {
            let from = sent[queue as usize];
            sent[queue as usize] += count;
            let next_offset = sent[queue as usize].to_string();
            desk.put(queue, read(0, &next_offset, &records(from..from + count), from));
            for (queue, queue_offset) in offsets(&desk.take(takes.next().unwrap_or(1))) {
                seen[queue as usize].push(queue_offset);
            }
            for queue in 0..3u64 {
                let position = desk.get(queue).unwrap().position();
                prop_assert_eq!(position, seen[queue as usize].len() as i64);
            }
        }
        for (queue, queue_offset) in offsets(&desk.take(1000)) {
            seen[queue as usize].push(queue_offset);
        }
        for queue in 0..3 {
            prop_assert_eq!(&seen[queue], &(0..sent[queue]).collect::<Vec<_>>());
        }
    }
}
