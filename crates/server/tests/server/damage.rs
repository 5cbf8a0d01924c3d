//! Damaged records where reads wait for their repair: nobody gets past them, and nobody gives them up.

use metaq_server::{Look, Recall, RecallOutcome};
use metaq_store::{DamagedMessage, SCHEDULE_TOPIC, TIMER_TOPIC};

use crate::support::request_code::{PULL_MESSAGE, SEND_MESSAGE_V2};
use crate::support::*;

const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// A place in a message of the tests that belongs to its body.
const IN_BODY: i64 = 200;

fn waiting() -> Plane {
    Plane::with(|setup| setup.store.stop_at_damage = true)
}

fn put(client: &mut Client, more: &[(&str, &str)], letter: &str) {
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(more)), letter.repeat(400).as_bytes());
    assert_eq!(answer.code, response_code::SUCCESS, "{answer:?}");
}

/// Damages the newest message of a queue, and returns the place that repairs it when it is flipped again.
fn damage_newest(plane: &Plane, topic: &str) -> i64 {
    let place = plane.read(topic, 0).pop().unwrap().physical_offset + IN_BODY;
    plane.flip(place);
    place
}

fn first_letters(plane: &Plane) -> Vec<String> {
    plane.bodies(TOPIC, 0).iter().map(|body| body[..1].to_owned()).collect()
}

fn held_pull(queue_offset: i64) -> Fields<'static> {
    but(pull_fields(queue_offset), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")])
}

#[test]
fn a_pull_waits_in_front_of_a_damaged_record_and_not_for_others() {
    let plane = waiting();
    let mut client = plane.connect();
    for letter in ["a", "b"] {
        put(&mut client, &[], letter);
    }
    let place = damage_newest(&plane, TOPIC);
    put(&mut client, &[], "c");
    let found = client.ask(PULL_MESSAGE, &held_pull(0), b"");
    assert_eq!((found.bodies().len(), found.number("nextBeginOffset")), (1, 1), "it ends in front of it");
    let at_once = client.ask(PULL_MESSAGE, &pull_fields(1), b"");
    assert_eq!((at_once.code, at_once.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, 1));
    assert!(at_once.number("maxOffset") > 1);
    at_once.refuses(response_code::PULL_NOT_FOUND, "[DAMAGED]");
    client.send(PULL_MESSAGE, &held_pull(1), b"");
    put(&mut plane.connect(), &[], "d");
    client.expect_silence();
    let named: Vec<DamagedMessage> = plane.store.damaged_messages();
    assert_eq!(named.iter().map(|one| (one.queue_offset, one.is_skipped)).collect::<Vec<_>>(), [(1, false)]);
    plane.flip(place);
    plane.broker_plane.stop(true);
    let answer = client.answer();
    assert_eq!(answer.bodies().len(), 3, "the end of the role looks once more: {answer:?}");
}

#[test]
fn a_reset_reaches_a_pull_in_front_of_a_damaged_record() {
    let plane = waiting();
    let mut client = plane.connect();
    put(&mut client, &[], "a");
    let _never_repaired = damage_newest(&plane, TOPIC);
    put(&mut client, &[], "b");
    client.send(PULL_MESSAGE, &held_pull(0), b"");
    client.expect_silence();
    plane.broker().pulls.reset_offset(GROUP, TOPIC, 0, 1);
    let answer = client.answer();
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_OFFSET_MOVED, 1));
}

#[test]
fn messages_that_wait_for_their_time_wait_for_a_repair_too() {
    for (delay, topic) in [(("DELAY", "1"), SCHEDULE_TOPIC), (("TIMER_DELAY_SEC", "1"), TIMER_TOPIC)] {
        let plane = waiting();
        let mut client = plane.connect();
        put(&mut client, &[delay], "a");
        put(&mut client, &[delay], "b");
        let place = damage_newest(&plane, topic);
        put(&mut client, &[delay], "c");
        plane.advance_ms(1_500);
        eventually("the damage is noticed", || !plane.store.known_damage().is_empty());
        let early = first_letters(&plane);
        assert!(early.is_empty() || early == ["a"], "{topic}: {early:?}");
        plane.flip(place);
        eventually("all are delivered", || first_letters(&plane) == ["a", "b", "c"]);
    }
}

#[test]
fn a_message_is_not_delivered_while_its_recall_is_damaged() {
    let plane = waiting();
    plane.broker().due_times.set_recall_key(b"secret".to_vec());
    let mut client = plane.connect();
    put(&mut client, &[("UNIQ_KEY", "K"), ("TIMER_DELAY_SEC", "2")], "a");
    let recall = Recall {
        topic: TOPIC.to_owned(),
        unique_key: "K".to_owned(),
        due_ms: START_MS + 2_000,
        producer_group: PRODUCER_GROUP.to_owned(),
        born_host: ([127, 0, 0, 1], 1).into(),
    };
    assert_eq!(plane.broker().timers.recall(&recall).unwrap(), RecallOutcome::Stored);
    let record = plane.read(TIMER_TOPIC, 0).pop().unwrap();
    let place = record.physical_offset + 4;
    plane.flip(place);
    plane.advance_ms(2_500);
    eventually("the damage is noticed", || !plane.store.known_damage().is_empty());
    assert_eq!(first_letters(&plane), [""; 0]);
    plane.flip(place);
    eventually("it is recalled", || plane.figures().timers.recalled == 1);
    assert_eq!(first_letters(&plane), [""; 0]);
}

#[test]
fn a_transaction_with_a_damaged_half_message_stays_open() {
    let plane = waiting();
    let mut client = plane.connect();
    let half = [("UNIQ_KEY", "K"), ("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP)];
    put(&mut client, &half, "a");
    let place = damage_newest(&plane, HALF_TOPIC);
    put(&mut client, &half, "b");
    let due = |plane: &Plane| {
        plane.advance_ms(60_000);
        let now_ms = plane.clock.now_ms();
        let look =
            Look { now_ms, timeout_ms: 6_000, renew_ms: 60_000, stored_before_ms: now_ms, count_max: 9 };
        plane.broker().transactions.due(&look).len()
    };
    assert_eq!(due(&plane), 1, "only its producer is asked whose message is sound");
    assert_eq!(plane.broker().transactions.renew(&[0], true).unwrap().len(), 0);
    assert!(plane.broker().transactions.give_up(&[0], "lost").is_err());
    assert_eq!(plane.figures().transactions_open, 2);
    let plane = plane.restart(|setup| setup.store.stop_at_damage = true);
    assert_eq!(plane.figures().transactions_open, 2, "a start keeps it open too");
    assert_eq!(due(&plane), 1);
    assert_eq!(plane.broker().transactions.progress(PATIENCE).unwrap().0, 0);
    plane.flip(place);
    assert_eq!(due(&plane), 2);
}
