#![allow(clippy::unwrap_used)]

use metaq_wire::batch_records;
use proptest::prelude::*;

use super::*;
use crate::produce::batch::Outcome;
use crate::produce::ids::UniqueIds;

const IN_FLIGHT_MAX: usize = 4;
const LINGER: Duration = Duration::from_millis(5);

fn lanes(batch_bytes_max: usize) -> Lanes<()> {
    let limits = LaneLimits {
        linger: LINGER,
        batch_bytes_max,
        buffer_bytes_max: 1 << 20,
        in_flight_max: IN_FLIGHT_MAX,
    };
    Lanes::new(limits, None, Arc::new(UniqueIds::new(&[1], 0, 0)))
}

fn queue(queue_id: i32) -> BrokerQueue {
    BrokerQueue { broker: "b".into(), queue_id }
}

fn id() -> IdTail {
    UniqueIds::new(&[1], 0, 0).next()
}

fn put(lanes: &mut Lanes<()>, lane: usize, body: &[u8], now: Instant) -> Queued<()> {
    let message = NewMessage {
        id: id(),
        flag: 0,
        body,
        properties_bytes: 4,
        push_properties: |out: &mut Vec<u8>| out.extend_from_slice(b"a\x01b\x02"),
    };
    lanes.put(lane, message, || now).unwrap()
}

fn bodies(batch: &Batch<()>) -> Vec<Vec<u8>> {
    batch_records(&batch.body()).map(|record| record.unwrap().body.to_vec()).collect()
}

fn finish(lanes: &mut Lanes<()>, batch: &Batch<()>) -> Done<()> {
    batch.finish(Outcome::Failed).unwrap();
    lanes.done(batch)
}

#[test]
fn a_batch_waits_for_more_and_goes_when_it_has_waited_enough() {
    let mut lanes = lanes(1000);
    let lane = lanes.find_or_make("t", None);
    let now = Instant::now();
    assert!(put(&mut lanes, lane, b"one", now).wakes, "the driver must know when to look");
    assert!(!put(&mut lanes, lane, b"two", now).wakes);
    assert_eq!(lanes.take_due(now).1, Some(now + LINGER));
    let (due, next) = lanes.take_due(now + LINGER);
    assert_eq!((due.len(), next), (1, None));
    assert_eq!(bodies(&due[0]), [b"one", b"two"]);
    assert_eq!(due[0].contents().unwrap().size_bytes, 2 * (22 + 3 + 4));
}

#[test]
fn a_full_batch_waits_for_nothing() {
    let mut lanes = lanes(80);
    let lane = lanes.find_or_make("t", None);
    let now = Instant::now();
    for body in [b"one", b"two", b"333"] {
        put(&mut lanes, lane, body, now);
    }
    let (due, _) = lanes.take_due(now);
    assert_eq!(due.len(), 1);
    assert_eq!(bodies(&due[0]), [b"one", b"two"]);
}

#[test]
fn a_burst_is_spread_over_batches_until_enough_are_on_their_way() {
    let mut lanes = lanes(1 << 20);
    let any = lanes.find_or_make("t", None);
    let given = lanes.find_or_make("t", Some(&queue(0)));
    let now = Instant::now();
    for _ in 0..1000 {
        put(&mut lanes, any, b"one", now);
        put(&mut lanes, given, b"one", now);
    }
    let (mut due, _) = lanes.take_due(now);
    assert_eq!(due.iter().map(|batch| batch.count()).collect::<Vec<_>>(), [SPREAD_COUNT; IN_FLIGHT_MAX]);
    finish(&mut lanes, &due.pop().unwrap());
    let (rest, _) = lanes.take_due(now + LINGER);
    let mut counts: Vec<usize> = rest.iter().map(|batch| batch.count()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1000 - IN_FLIGHT_MAX * SPREAD_COUNT, 1000], "a given queue gets one batch");
}

#[test]
fn one_at_a_time_where_order_counts_and_the_next_grows_meanwhile() {
    let mut lanes = lanes(1000);
    let queue = queue(1);
    let lane = lanes.find_or_make("t", Some(&queue));
    let now = Instant::now();
    put(&mut lanes, lane, b"1", now);
    let (first, _) = lanes.take_due(now + LINGER);
    put(&mut lanes, lane, b"2", now);
    assert!(lanes.take_due(now + 2 * LINGER).0.is_empty());
    put(&mut lanes, lane, b"3", now);
    assert!(lanes.take_due(now + 2 * LINGER).0.is_empty());
    assert!(finish(&mut lanes, &first[0]).wakes);
    let (second, _) = lanes.take_due(now + 2 * LINGER);
    assert_eq!(bodies(&second[0]), [b"2", b"3"]);
    assert_eq!(second[0].queue, Some(queue));
}

#[test]
fn several_at_a_time_where_it_does_not() {
    let mut lanes = lanes(1);
    let lane = lanes.find_or_make("t", None);
    let now = Instant::now();
    for number in 0..10 {
        put(&mut lanes, lane, &[number], now);
    }
    let (due, _) = lanes.take_due(now);
    assert_eq!(due.len(), IN_FLIGHT_MAX);
    finish(&mut lanes, &due[2]);
    assert_eq!(lanes.take_due(now).0.len(), 1);
}

#[test]
fn what_goes_alone_keeps_its_turn() {
    let mut lanes = lanes(1000);
    let lane = lanes.find_or_make("t", Some(&queue(0)));
    let now = Instant::now();
    put(&mut lanes, lane, b"1", now);
    let form = Form::Alone { properties: "p".to_owned(), system_flag: 1, flag: 0 };
    lanes.put_alone(lane, id(), form.clone(), Bytes::from_static(b"2"), 10).unwrap();
    put(&mut lanes, lane, b"3", now);
    let mut order = Vec::new();
    while let [batch] = &lanes.take_due(now + LINGER).0[..] {
        let body = match batch.contents().unwrap().form {
            Form::Together => bodies(batch).concat(),
            Form::Alone { .. } => batch.body().to_vec(),
        };
        order.push(body);
        finish(&mut lanes, batch);
    }
    assert_eq!(order, [b"1", b"2", b"3"]);
}

#[test]
fn a_flush_is_over_when_all_before_it_is_done() {
    let mut lanes = lanes(1000);
    assert_eq!(lanes.unfinished_count(lanes.epochs[0].0), 0);
    let empty = lanes.flush();
    let (one, other) = (lanes.find_or_make("t", None), lanes.find_or_make("u", None));
    let now = Instant::now();
    put(&mut lanes, one, b"1", now);
    put(&mut lanes, other, b"2", now);
    assert_eq!(lanes.unfinished_count(empty), 0, "it was there before them");
    let flush = lanes.flush();
    put(&mut lanes, one, b"3", now);
    let (due, _) = lanes.take_due(now);
    assert_eq!((due.len(), lanes.unfinished_count(flush)), (2, 2));
    assert!(!finish(&mut lanes, &due[1]).flushed);
    let again = lanes.flush();
    assert_eq!((lanes.unfinished_count(flush), lanes.unfinished_count(again)), (1, 2));
    assert!(finish(&mut lanes, &due[0]).flushed);
    assert_eq!((lanes.unfinished_count(flush), lanes.unfinished_count(again)), (0, 1));
    let late = lanes.flush();
    put(&mut lanes, one, b"4", now);
    assert_eq!(lanes.unfinished_count(late), 1);
}

#[test]
fn at_the_end_nothing_is_forgotten() {
    let mut lanes = lanes(60);
    let (one, other) = (lanes.find_or_make("t", None), lanes.find_or_make("t", Some(&queue(0))));
    let now = Instant::now();
    for body in [b"1", b"2", b"3", b"4"] {
        put(&mut lanes, one, body, now);
        put(&mut lanes, other, body, now);
    }
    lanes.take_due(now);
    let all = lanes.drain();
    assert_eq!(all.iter().map(|batch| batch.count()).sum::<usize>(), 8);
    for batch in &all {
        finish(&mut lanes, batch);
    }
    assert!(lanes.drain().is_empty());
    assert_eq!(lanes.unfinished_count(u64::MAX), 0);
}

#[test]
fn lanes_are_told_apart() {
    let mut lanes = lanes(1000);
    let any = lanes.find_or_make("t", None);
    let given = lanes.find_or_make("t", Some(&queue(0)));
    assert_ne!(any, given);
    assert_eq!(lanes.find("t", None), Some(any));
    assert_eq!(lanes.find("t", Some(&queue(0))), Some(given));
    assert_eq!(lanes.find("t", Some(&queue(1))), None);
    assert_eq!(lanes.find("u", None), None);
    assert_eq!(lanes.find_or_make("t", Some(&queue(0))), given);
}

proptest! {
    /// In any order of puts, takes and outcomes, a lane returns each message once and in order.
    #[test]
    fn nothing_is_lost_or_swapped(steps in prop::collection::vec(0..4_u8, 1..200), limit in 20..200_usize) {
        let mut lanes = lanes(limit);
        let lane = lanes.find_or_make("t", Some(&queue(0)));
        let mut now = Instant::now();
        let (mut sent, mut seen) = (0_u32, Vec::new());
        let mut under_way: Vec<Arc<Batch<()>>> = Vec::new();
        let mut look = |lanes: &mut Lanes<()>, under_way: &mut Vec<Arc<Batch<()>>>, now| {
            for batch in lanes.take_due(now).0 {
                seen.extend(bodies(&batch));
                under_way.push(batch);
            }
        };
        for step in steps {
            match step {
                0 | 1 => {
                    put(&mut lanes, lane, &sent.to_be_bytes(), now);
                    sent += 1;
                }
                2 => now += LINGER / 2,
                _ => if let Some(batch) = under_way.pop() {
                    finish(&mut lanes, &batch);
                },
            }
            look(&mut lanes, &mut under_way, now);
            prop_assert!(under_way.len() <= 1);
        }
        let flush = lanes.flush();
        for _ in 0..=sent {
            if let Some(batch) = under_way.pop() {
                finish(&mut lanes, &batch);
            }
            look(&mut lanes, &mut under_way, now);
        }
        prop_assert_eq!(lanes.unfinished_count(flush), 0);
        prop_assert_eq!(seen, (0..sent).map(|number| number.to_be_bytes().to_vec()).collect::<Vec<_>>());
    }
}
