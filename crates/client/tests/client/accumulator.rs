//! A producer's buffer against a scripted broker: order, space, and everything that can go wrong with a batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_client::{
    Accumulator, Batch, BatchMessage, BrokerQueue, ClientError, Event, Form, IdTail, LaneLimits, Network,
    OffsetIds, Outcome, Put, PutError, Route, SendSettings, Stored, UniqueIds, Unsent, UnsentReason,
    WhenFull,
};
use metaq_wire::batch_records;
use proptest::prelude::*;

use crate::support::{Act, Asked, NETWORK, Server, answer, eventually};

const LONG: Duration = Duration::from_secs(60);
const TOPIC: &str = "t";

type Buffer = Arc<Accumulator<()>>;

struct Limits {
    linger_ms: u64,
    batch_bytes_max: usize,
    buffer_bytes_max: usize,
    attempt_timeout: Duration,
    timeout: Duration,
    half_properties: Option<&'static str>,
}

/// So long that only a flush or its size sends a batch, however slowly a test puts messages.
const UNTIL_FLUSHED: u64 = 3_600_000;

const USUAL: Limits = Limits {
    linger_ms: 1,
    batch_bytes_max: 1000,
    buffer_bytes_max: 1 << 20,
    attempt_timeout: LONG,
    timeout: LONG,
    half_properties: None,
};

fn buffer(server: &Server, limits: Limits) -> (Arc<Network>, Buffer) {
    let network = Network::start(NETWORK).unwrap();
    let settings = SendSettings {
        group: "g".to_owned(),
        attempt_timeout: limits.attempt_timeout,
        timeout: limits.timeout,
        limits: LaneLimits {
            linger: Duration::from_millis(limits.linger_ms),
            batch_bytes_max: limits.batch_bytes_max,
            buffer_bytes_max: limits.buffer_bytes_max,
            in_flight_max: 4,
        },
        half_properties: limits.half_properties.map(Arc::from),
    };
    let ids = Arc::new(UniqueIds::new(&[1, 2, 3], 0, 0));
    let buffer = Accumulator::start(Arc::clone(&network), ids, settings).unwrap();
    let broker: Arc<str> = "b".into();
    let route = Route {
        queues: (0..2).map(broker_queue).collect(),
        addresses: HashMap::from([(broker, Arc::from(server.address.as_str()))]),
        is_template: false,
    };
    buffer.routes.put(TOPIC, route);
    (network, buffer)
}

fn broker_queue(queue_id: i32) -> BrokerQueue {
    BrokerQueue { broker: "b".into(), queue_id }
}

fn put(buffer: &Buffer, queue: Option<&BrokerQueue>, body: &[u8]) -> Result<Put<()>, PutError> {
    put_asking(buffer, queue, body, WhenFull::Refuse)
}

fn put_asking(
    buffer: &Buffer,
    queue: Option<&BrokerQueue>,
    body: &[u8],
    when_full: WhenFull,
) -> Result<Put<()>, PutError> {
    let plain = BatchMessage {
        topic: TOPIC,
        queue,
        id: buffer.ids.next(),
        flag: 0,
        body,
        properties_bytes: 4,
        push_properties: |out: &mut Vec<u8>| out.extend_from_slice(b"a\x01b\x02"),
    };
    buffer.put(plain, when_full)
}

/// Stores a batch as a broker does, from this queue offset on.
fn stored(asked: &Asked, queue_offset: usize) -> Act {
    let count = match asked.code {
        320 => batch_records(&asked.body).count(),
        _ => 1,
    };
    let ids: Vec<String> = (0..count).map(|number| format!("ID{:04}", queue_offset + number)).collect();
    Act::Answer {
        code: 0,
        fields: vec![
            ("msgId", ids.join(",")),
            ("queueId", asked.fields["e"].clone()),
            ("queueOffset", queue_offset.to_string()),
        ],
        body: Vec::new(),
    }
}

fn stored_at(queue_offset: i64) -> Stored {
    Stored {
        queue: broker_queue(0),
        queue_offset,
        code: 0,
        is_accepted: true,
        offset_ids: OffsetIds::default(),
        recall_handle: None,
        transaction_id: None,
    }
}

/// Every body that the server got, in order.
fn bodies(server: &Server) -> Vec<Vec<u8>> {
    let records = |asked: &Asked| match asked.code {
        320 => batch_records(&asked.body).map(|record| record.unwrap().body.to_vec()).collect(),
        _ => vec![asked.body.clone()],
    };
    server.asked().iter().flat_map(records).collect()
}

fn outcome(batch: &Batch<()>) -> &Stored {
    assert!(batch.wait(LONG), "it is never done");
    match batch.outcome().unwrap() {
        Outcome::Stored(stored) => stored,
        Outcome::Failed => panic!("it failed"),
    }
}

/// The next batch that was handed up.
fn crossed(buffer: &Buffer) -> Unsent<()> {
    let mut found = None;
    eventually(|| {
        found = buffer.drain(1000).into_iter().find_map(|event| match event {
            Event::Unsent(crossed) => Some(crossed),
            _ => None,
        });
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn messages_go_together_and_each_knows_its_place() {
    let server = Server::start(|asked| vec![stored(asked, 70)]);
    let (_network, buffer) = buffer(&server, Limits { linger_ms: UNTIL_FLUSHED, ..USUAL });
    let puts: Vec<_> = [b"one", b"two"].map(|body| put(&buffer, None, body).unwrap()).into();
    buffer.flush();
    let stored = outcome(&puts[0].0);
    assert_eq!((stored.queue_offset, stored.offset_ids.get(puts[1].1)), (70, "ID0071"));
    assert_eq!(bodies(&server), [b"one", b"two"]);
    let asked = &server.asked()[0];
    assert_eq!(asked.code, 320);
    let wanted = [("a", "g"), ("b", TOPIC), ("d", "2"), ("m", "true"), ("n", "b")];
    assert!(wanted.iter().all(|(name, value)| asked.fields[*name] == *value), "{:?}", asked.fields);
    assert_eq!(stored.queue.queue_id.to_string(), asked.fields["e"]);
    assert!(puts[0].0.message_id(0).unwrap() < puts[1].0.message_id(1).unwrap());
}

#[test]
fn batches_can_be_half_messages() {
    let server = Server::start(|asked| vec![stored(asked, 70)]);
    let half_properties = Some("TRAN_MSG\u{1}true\u{2}");
    let limits = Limits { linger_ms: UNTIL_FLUSHED, batch_bytes_max: 60, half_properties, ..USUAL };
    let (_network, buffer) = buffer(&server, limits);
    let queue = broker_queue(1);
    let puts: Vec<_> = [b"a", b"b", b"c"].map(|body| put(&buffer, Some(&queue), body).unwrap()).into();
    let epoch = buffer.flush();
    eventually(|| buffer.unfinished_count(epoch) == 0);
    let asked = server.asked();
    assert_eq!((asked.len(), asked[0].code, asked[0].fields["f"].as_str()), (2, 310, "4"));
    let first = puts[0].0.message_id(0).unwrap();
    let wanted = format!("TRAN_MSG\u{1}true\u{2}METAQ_HALF_BATCH\u{1}2\u{2}UNIQ_KEY\u{1}{first}\u{2}");
    assert_eq!(asked[0].fields["i"], wanted);
    let inner: Vec<_> = batch_records(&asked[0].body).map(|record| record.unwrap().body.to_vec()).collect();
    assert_eq!(inner, [b"a", b"b"]);
    let parts = buffer.take_half_batches();
    let told: Vec<_> =
        parts.iter().map(|part| (part.count, part.is_ordered, part.stored.queue_offset)).collect();
    assert_eq!(told, [(2, true, 70), (1, true, 70)]);
    assert!(buffer.take_half_batches().is_empty());
}

#[test]
fn queues_take_turns_where_none_is_asked_for() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let (_network, buffer) = buffer(&server, Limits { batch_bytes_max: 1, linger_ms: 0, ..USUAL });
    for _ in 0..4 {
        outcome(&put(&buffer, None, b"x").unwrap().0);
    }
    let queues: Vec<_> = server.asked().iter().map(|asked| asked.fields["e"].clone()).collect();
    assert_eq!(queues.iter().filter(|queue| *queue == "0").count(), 2, "{queues:?}");
}

#[test]
fn a_queue_keeps_its_order_even_while_a_batch_of_it_is_decided_about() {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let server = Server::start(move |asked| {
        if failing.swap(false, Ordering::Relaxed) {
            return vec![Act::Answer { code: 2, fields: vec![], body: vec![] }];
        }
        vec![stored(asked, 0)]
    });
    let limits = Limits { linger_ms: UNTIL_FLUSHED, batch_bytes_max: 60, ..USUAL };
    let (_network, buffer) = buffer(&server, limits);
    let queue = broker_queue(1);
    let puts: Vec<_> = (0..20_u8).map(|number| put(&buffer, Some(&queue), &[number]).unwrap()).collect();
    buffer.flush();
    let first = crossed(&buffer);
    assert!(matches!(&first.reason, UnsentReason::Answered(reply) if reply.code == 2));
    assert_eq!(first.target, Some(queue));
    assert_eq!((first.batch.id, first.batch.count()), (puts[0].0.id, 2));
    let so_far = server.asked().len();
    assert_eq!(so_far, 1, "later messages wait");
    let decided = Stored {
        queue: broker_queue(1),
        queue_offset: 5,
        code: 0,
        is_accepted: true,
        offset_ids: Default::default(),
        recall_handle: None,
        transaction_id: None,
    };
    buffer.finish(&first.batch, Outcome::Stored(decided));
    for (batch, _) in &puts {
        outcome(batch);
    }
    assert_eq!(bodies(&server), (0..20).map(|number| vec![number]).collect::<Vec<_>>());
}

#[test]
fn what_waited_behind_a_failure_for_all_its_time_is_not_sent_any_more() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let timeout = Duration::from_millis(50);
    let (_network, buffer) = buffer(&server, Limits { timeout, ..USUAL });
    let gone = BrokerQueue { broker: "gone".into(), queue_id: 0 };
    let mut batches = Vec::new();
    for body in [b"one", b"two", b"six"] {
        batches.push(put(&buffer, Some(&gone), body).unwrap().0);
        buffer.flush();
    }
    let all_made = Instant::now();
    let first = crossed(&buffer);
    assert!(matches!(first.reason, UnsentReason::NoRoute), "{:?}", first.reason);
    eventually(|| all_made.elapsed() >= timeout);
    // Waiting behind a slow broker costs a batch none of its time.
    let slow = stored_at(0);
    buffer.finish(&first.batch, Outcome::Stored(slow));
    let second = crossed(&buffer);
    assert!(matches!(second.reason, UnsentReason::NoRoute), "{:?}", second.reason);
    buffer.finish(&second.batch, Outcome::Failed);
    let third = crossed(&buffer);
    assert!(matches!(third.reason, UnsentReason::Expired), "{:?}", third.reason);
    assert!(third.batch.spent() >= timeout);
    assert!(server.asked().is_empty());
}

#[test]
fn what_goes_alone_is_a_request_of_its_own_in_its_turn() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let (_network, buffer) = buffer(&server, USUAL);
    let queue = broker_queue(0);
    put(&buffer, Some(&queue), b"1").unwrap();
    let form = Form::Alone { properties: "k\u{1}v\u{2}".to_owned(), system_flag: 769, flag: 3 };
    let body = Bytes::from_static(b"2");
    buffer.put_alone(TOPIC, Some(&queue), buffer.ids.next(), form, body, WhenFull::Refuse).unwrap();
    let last = put(&buffer, Some(&queue), b"3").unwrap();
    outcome(&last.0);
    assert_eq!(bodies(&server), [b"1", b"2", b"3"]);
    let alone = &server.asked()[1];
    assert_eq!((alone.code, alone.fields["f"].as_str(), alone.fields["h"].as_str()), (310, "769", "3"));
    assert_eq!((alone.fields["i"].as_str(), alone.fields["m"].as_str()), ("k\u{1}v\u{2}", "false"));
}

#[test]
fn a_full_buffer_takes_nothing_until_there_is_room() {
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let server = Server::start(move |asked| {
        eventually(|| gate.load(Ordering::Acquire));
        vec![stored(asked, 0)]
    });
    let (_network, buffer) = buffer(&server, Limits { buffer_bytes_max: 100, ..USUAL });
    let first = put(&buffer, None, &[0; 60]).unwrap();
    assert_eq!(put(&buffer, None, &[0; 60]).err(), Some(PutError::Full));
    let ticket = buffer.stand_in_line();
    assert_eq!(put(&buffer, None, b"").err(), Some(PutError::Full), "messages that wait go first");
    open.store(true, Ordering::Release);
    buffer.wait_in_line(ticket, 86, LONG);
    outcome(&first.0);
    buffer.leave_line(ticket);
    // The outcome of a batch is known a moment before its space is freed.
    eventually(|| buffer.held_bytes() == 0);
    let second = put(&buffer, None, &[0; 60]).unwrap();
    outcome(&second.0);
    eventually(|| buffer.held_bytes() == 0);
    outcome(&put(&buffer, None, &[0; 5000]).unwrap().0);
}

/// A message without properties.
fn known(body: &[u8], id: IdTail) -> BatchMessage<'_, impl FnOnce(&mut Vec<u8>)> {
    BatchMessage {
        topic: TOPIC,
        queue: None,
        id,
        flag: 0,
        body,
        properties_bytes: 0,
        push_properties: |_: &mut Vec<u8>| (),
    }
}

#[test]
fn who_asked_to_be_told_of_room_comes_first_until_it_waits_no_more() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let limits = Limits { linger_ms: UNTIL_FLUSHED, buffer_bytes_max: 100, ..USUAL };
    let (_network, buffer) = buffer(&server, limits);
    let first = put(&buffer, None, &[0; 60]).unwrap();
    // One call: space that is freed right after it, as here, is still notified.
    assert_eq!(put_asking(&buffer, None, &[0; 60], WhenFull::Notify).err(), Some(PutError::Full));
    buffer.flush();
    outcome(&first.0);
    eventually(|| buffer.held_bytes() == 0);
    let id = buffer.ids.next();
    assert_eq!(buffer.put_known(known(b"", id)).err(), Some(PutError::Full));
    let (second, _) = put_asking(&buffer, None, &[0; 60], WhenFull::Notify).unwrap();
    buffer.flush();
    outcome(&second);
    eventually(|| buffer.held_bytes() == 0);
    buffer.stop_watching_space();
    assert!(buffer.put_known(known(b"", id)).unwrap().is_some());
}

#[test]
fn what_must_not_wait_is_taken_past_the_limit_and_past_the_line() {
    let server = Server::start(|_| vec![Act::Silence]);
    let (_network, buffer) = buffer(&server, Limits { buffer_bytes_max: 100, ..USUAL });
    put(&buffer, None, &[0; 60]).unwrap();
    buffer.stand_in_line();
    assert_eq!(put(&buffer, None, &[0; 60]).err(), Some(PutError::Full));
    put_asking(&buffer, None, &[0; 60], WhenFull::Exceed).unwrap();
    assert_eq!(buffer.held_bytes(), 2 * 86);
}

#[test]
fn a_flush_sends_what_would_still_wait() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let (_network, buffer) = buffer(&server, Limits { linger_ms: 60_000, ..USUAL });
    for body in [b"1", b"2"] {
        put(&buffer, Some(&broker_queue(body[0].into())), body).unwrap();
        put(&buffer, None, body).unwrap();
    }
    let epoch = buffer.flush();
    // Batches for queues that the route lacks come up, and count until they have an outcome.
    let mut unroutable = Vec::new();
    eventually(|| {
        unroutable.extend(buffer.drain(1000));
        unroutable.len() == 2
    });
    for event in &unroutable {
        let Event::Unsent(crossed) = event else { panic!("nobody watches") };
        assert!(matches!(crossed.reason, UnsentReason::NoRoute));
        assert!(buffer.unfinished_count(epoch) > 0);
        buffer.finish(&crossed.batch, Outcome::Failed);
    }
    eventually(|| buffer.unfinished_count(epoch) == 0);
}

#[test]
fn a_cut_connection_hands_the_batch_up_and_the_next_one_goes() {
    let count = AtomicUsize::new(0);
    let server = Server::start(move |asked| match count.fetch_add(1, Ordering::Relaxed) {
        // Some bytes of an answer, and then nothing.
        0 => vec![Act::Raw(answer(asked.opaque, 0, &[], b"")[..11].to_vec()), Act::Close],
        _ => vec![stored(asked, 0)],
    });
    let (_network, buffer) = buffer(&server, USUAL);
    put(&buffer, None, b"1").unwrap();
    let lost = crossed(&buffer);
    assert!(matches!(lost.reason, UnsentReason::Unanswered(ClientError::Ended { .. })));
    assert_eq!(lost.batch.body().len(), 22 + 1 + 4, "it can be sent again");
    outcome(&put(&buffer, None, b"2").unwrap().0);
    buffer.finish(&lost.batch, Outcome::Failed);
    assert_eq!(lost.batch.body().len(), 0);
}

#[test]
fn an_answer_that_does_not_come_is_told_from_one_that_is_odd() {
    let odd = Arc::new(AtomicBool::new(false));
    let oddly = Arc::clone(&odd);
    let server = Server::start(move |asked| {
        if !oddly.load(Ordering::Acquire) {
            return vec![Act::Silence];
        }
        let fields = vec![("msgId", "x".to_owned()), ("queueId", "many".to_owned())];
        let wrong = answer(asked.opaque ^ 1, 0, &[("queueOffset", "1".to_owned())], b"");
        vec![Act::Raw(wrong), Act::Answer { code: 0, fields, body: vec![] }]
    });
    let limits = Limits { attempt_timeout: Duration::from_millis(50), ..USUAL };
    let (_network, buffer) = buffer(&server, limits);
    put(&buffer, None, b"1").unwrap();
    let silent = crossed(&buffer);
    assert!(matches!(silent.reason, UnsentReason::Unanswered(ClientError::Timeout { .. })));
    assert!(silent.batch.spent() >= Duration::from_millis(50));
    odd.store(true, Ordering::Release);
    // The time is short: on a busy machine even the odd answer may come too late.
    eventually(|| {
        put(&buffer, None, b"2").unwrap();
        let reason = crossed(&buffer).reason;
        matches!(reason, UnsentReason::Answered(reply) if reply.code == 0)
    });
}

#[test]
fn a_topic_that_a_message_made_and_a_broker_that_came_back_are_told() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let (_network, buffer) = buffer(&server, USUAL);
    let mut route = Route::clone(&buffer.routes.get(TOPIC).unwrap());
    route.is_template = true;
    buffer.routes.put(TOPIC, route);
    buffer.routes.set_faults([(Arc::from("b"), std::time::Instant::now())]);
    outcome(&put(&buffer, None, b"1").unwrap().0);
    let events = buffer.drain(1000);
    assert!(events.iter().any(|event| matches!(event, Event::TopicCreated(topic) if **topic == *TOPIC)));
    assert!(events.iter().any(|event| matches!(event, Event::BrokerRecovered(broker) if **broker == *"b")));
}

#[test]
fn at_the_end_everything_that_is_not_done_is_given_back() {
    let server = Server::start(|_| vec![Act::Silence]);
    let (network, buffer) = buffer(&server, Limits { batch_bytes_max: 60, ..USUAL });
    let puts: Vec<_> = (0..10_u8).map(|number| put(&buffer, None, &[number]).unwrap()).collect();
    eventually(|| !server.asked().is_empty());
    let left = buffer.close();
    assert_eq!(left.iter().map(|crossed| crossed.batch.count()).sum::<usize>(), 10);
    assert!(puts.iter().all(|(batch, _)| batch.outcome().is_none()));
    for crossed in &left {
        buffer.finish(&crossed.batch, Outcome::Failed);
    }
    assert!(puts.iter().all(|(batch, _)| batch.outcome() == Some(&Outcome::Failed)));
    assert_eq!(put(&buffer, None, b"late").err(), Some(PutError::Closed));
    network.close();
}

#[test]
fn watchers_are_told_and_their_room_is_kept_until_then() {
    let server = Server::start(|asked| vec![stored(asked, 0)]);
    let limits = Limits { linger_ms: UNTIL_FLUSHED, buffer_bytes_max: 50, ..USUAL };
    let (_network, buffer) = buffer(&server, limits);
    let (batch, _) = put(&buffer, None, &[0; 20]).unwrap();
    assert!(batch.watch(|_| ()));
    buffer.flush();
    outcome(&batch);
    assert_eq!(put(&buffer, None, &[0; 20]).err(), Some(PutError::Full));
    let mut finished = None;
    eventually(|| {
        finished = buffer.drain(1000).into_iter().find_map(|event| match event {
            Event::Finished(batch) => Some(batch),
            _ => None,
        });
        finished.is_some()
    });
    buffer.release(&finished.unwrap());
    put(&buffer, None, &[0; 20]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever a broker says to a batch, the batch is stored or handed up, and the buffer goes on.
    #[test]
    fn no_answer_is_too_strange(code in 0..30_i32, fields in prop::collection::vec(("[a-z]{1,5}|msgId|queueId|queueOffset", ".{0,12}"), 0..5)) {
        let strange = Arc::new(AtomicBool::new(true));
        let first = Arc::clone(&strange);
        let server = Server::start(move |asked| {
            if !first.swap(false, Ordering::Relaxed) {
                return vec![stored(asked, 0)];
            }
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            vec![Act::Raw(answer(asked.opaque, code, &fields, b""))]
        });
        let (_network, buffer) = buffer(&server, USUAL);
        let (batch, _) = put(&buffer, None, b"1").unwrap();
        let mut handed_up = false;
        eventually(|| {
            handed_up |= buffer.drain(1000).iter().any(|event| matches!(event, Event::Unsent(_)));
            handed_up || batch.outcome().is_some()
        });
        outcome(&put(&buffer, None, b"2").unwrap().0);
    }
}
