//! Half messages and END_TRANSACTION (37).

use std::io::ErrorKind;

use metaq_server::{Decided, End, Look, ServerError};
use metaq_store::StoreError;
use metaq_store::faulty_disk::Call;

use crate::support::request_code::{END_TRANSACTION, SEND_MESSAGE_V2};
use crate::support::*;

const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const COMMIT: &str = "8";
const ROLLBACK: &str = "12";

fn half_fields(more: &[(&str, &str)]) -> Fields<'static> {
    let mut pairs = vec![("UNIQ_KEY", "K"), ("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP)];
    pairs.extend(more);
    send_fields(&properties(&pairs))
}

/// Stores a half message and returns the fields that end its transaction.
fn begin(plane: &Plane, client: &mut Client, body: &str, more: &[(&str, &str)]) -> Fields<'static> {
    let answer = client.ask(SEND_MESSAGE_V2, &half_fields(more), body.as_bytes());
    assert_eq!(answer.code, response_code::SUCCESS, "{answer:?}");
    end_fields(&plane.read(HALF_TOPIC, 0).pop().unwrap())
}

fn end_fields(half: &Message) -> Fields<'static> {
    vec![
        ("producerGroup", PRODUCER_GROUP.to_owned()),
        ("tranStateTableOffset", half.queue_offset.to_string()),
        ("commitLogOffset", half.physical_offset.to_string()),
        ("commitOrRollback", COMMIT.to_owned()),
        ("fromTransactionCheck", "false".to_owned()),
    ]
}

fn rollback(end: &Fields<'static>) -> Fields<'static> {
    but(end.clone(), &[("commitOrRollback", ROLLBACK)])
}

fn look(plane: &Plane) -> Look {
    let now_ms = plane.clock.now_ms();
    Look { now_ms, timeout_ms: 6_000, renew_ms: 60_000, stored_before_ms: now_ms, count_max: 10 }
}

/// The queue offsets of the half messages that are due for a check.
fn due(plane: &Plane) -> Vec<i64> {
    let records = plane.broker().transactions.due(&look(plane));
    records.iter().flat_map(|due| messages(&due.record)).map(|half| half.queue_offset).collect()
}

#[test]
fn a_half_message_is_seen_by_consumers_when_it_is_committed() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "paid", &[]);
    assert_eq!(plane.bodies(TOPIC, 0), [""; 0]);
    assert_eq!(plane.figures().transactions_open, 1);
    let answer = client.ask(END_TRANSACTION, &end, b"");
    assert_eq!((answer.code, answer.fields.len()), (response_code::SUCCESS, 0));
    let committed = plane.read(TOPIC, 0).remove(0);
    assert_eq!((committed.body.as_str(), committed.system_flag & 12), ("paid", 8));
    for name in ["TRAN_MSG", "REAL_TOPIC", "REAL_QID"] {
        assert!(!committed.properties.contains_key(name), "{name}");
    }
    assert_eq!(committed.properties["__transactionId__"], "K");
    assert_eq!(plane.figures().transactions_open, 0);
}

#[test]
fn a_message_that_is_rolled_back_is_never_seen() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "unpaid", &[]);
    assert_eq!(client.ask(END_TRANSACTION, &rollback(&end), b"").code, response_code::SUCCESS);
    assert_eq!(client.ask(END_TRANSACTION, &rollback(&end), b"").code, response_code::SUCCESS, "again");
    client.ask(END_TRANSACTION, &end, b"").refuses(response_code::SYSTEM_ERROR, "rolled back before");
    assert_eq!(plane.bodies(TOPIC, 0), [""; 0]);
    let end = begin(&plane, &mut client, "paid", &[]);
    client.send_oneway(END_TRANSACTION, &end, b"");
    client
        .ask(END_TRANSACTION, &rollback(&end), b"")
        .refuses(response_code::SYSTEM_ERROR, "committed before");
    assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS, "again");
    assert_eq!(plane.bodies(TOPIC, 0), ["paid"], "and only once");
}

#[test]
fn a_producer_that_does_not_know_yet_is_heard_later() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "paid", &[]);
    let unknown = but(end.clone(), &[("commitOrRollback", "0")]);
    assert_eq!(client.ask(END_TRANSACTION, &unknown, b"").code, response_code::SUCCESS);
    assert_eq!(plane.figures().transactions_open, 1);
    assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["paid"]);
}

#[test]
fn an_end_that_does_not_fit_its_half_message_is_refused() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put("not a half message");
    let end = begin(&plane, &mut client, "paid", &[]);
    let refused = [
        ("producerGroup", "thieves", "does not belong to producer group[thieves]"),
        ("tranStateTableOffset", "7", "tranStateTableOffset is 7"),
        ("commitLogOffset", "0", "no half message begins at commit log offset 0"),
        ("commitLogOffset", "1", "no half message begins at commit log offset 1"),
        ("commitLogOffset", "123456789", "no half message"),
        ("commitOrRollback", "4", "must be 8, 12 or 0"),
        ("producerGroup", "", "producerGroup"),
    ];
    for (field, value, remark_part) in refused {
        let answer = client.ask(END_TRANSACTION, &but(end.clone(), &[(field, value)]), b"");
        answer.refuses(response_code::SYSTEM_ERROR, remark_part);
    }
    assert_eq!((plane.figures().transactions_open, plane.bodies(TOPIC, 0).len()), (1, 1));
}

#[test]
fn the_body_of_a_half_message_is_read_only_to_commit_it() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, &"x".repeat(10_000), &[]);
    let half = plane.read(HALF_TOPIC, 0).remove(0);
    plane.flip(half.physical_offset + 5_000);
    let mut refuses = |fields: &Fields<'_>, remark_part: &str| {
        client.ask(END_TRANSACTION, fields, b"").refuses(response_code::SYSTEM_ERROR, remark_part);
    };
    refuses(&but(end.clone(), &[("tranStateTableOffset", "7")]), "tranStateTableOffset is 7");
    refuses(&but(end.clone(), &[("producerGroup", "thieves")]), "does not belong to producer group");
    refuses(&end, "no half message begins at commit log offset");
    assert_eq!(plane.bodies(TOPIC, 0), [""; 0], "a damaged body is not committed");
    assert_eq!(client.ask(END_TRANSACTION, &rollback(&end), b"").code, response_code::SUCCESS);
    client.ask(END_TRANSACTION, &end, b"").refuses(response_code::SYSTEM_ERROR, "rolled back before");
}

#[test]
fn open_transactions_are_bounded() {
    let plane = Plane::with(|setup| setup.broker.transaction.open_max = 1);
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "one", &[]);
    client
        .ask(SEND_MESSAGE_V2, &half_fields(&[]), b"two")
        .refuses(response_code::SYSTEM_BUSY, "transactions_open_max");
    client.ask(END_TRANSACTION, &end, b"");
    begin(&plane, &mut client, "three", &[]);
}

#[test]
fn open_transactions_of_one_group_are_bounded() {
    let plane = Plane::with(|setup| setup.broker.transaction.open_per_group_max = 1);
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "one", &[]);
    client
        .ask(SEND_MESSAGE_V2, &half_fields(&[]), b"two")
        .refuses(response_code::SYSTEM_BUSY, "transactions_open_per_group_max");
    let other = but(half_fields(&[]), &[("a", "others")]);
    assert_eq!(client.ask(SEND_MESSAGE_V2, &other, b"other").code, response_code::SUCCESS);
    client.ask(END_TRANSACTION, &end, b"");
    begin(&plane, &mut client, "three", &[]);
    let plane = plane.restart(|setup| setup.broker.transaction.open_per_group_max = 1);
    let mut client = plane.connect();
    client
        .ask(SEND_MESSAGE_V2, &half_fields(&[]), b"four")
        .refuses(response_code::SYSTEM_BUSY, "transactions_open_per_group_max");
}

#[test]
fn open_transactions_of_one_address_are_bounded_whatever_groups_it_names() {
    let plane = Plane::with(|setup| setup.broker.transaction.open_per_address_max = 5);
    let mut stranger = Client::connect_from([127, 0, 0, 2], plane.listener.port());
    let invented = |number: usize| but(half_fields(&[]), &[("a", &format!("invented{number}"))]);
    for number in 0..5 {
        assert_eq!(stranger.ask(SEND_MESSAGE_V2, &invented(number), b"x").code, response_code::SUCCESS);
    }
    let limit = "transactions_open_per_address_max";
    stranger.ask(SEND_MESSAGE_V2, &invented(5), b"x").refuses(response_code::SYSTEM_BUSY, limit);
    begin(&plane, &mut plane.connect(), "honest", &[]);
    let plane = plane.restart(|setup| setup.broker.transaction.open_per_address_max = 5);
    let mut stranger = Client::connect_from([127, 0, 0, 2], plane.listener.port());
    stranger.ask(SEND_MESSAGE_V2, &invented(6), b"x").refuses(response_code::SYSTEM_BUSY, limit);
    begin(&plane, &mut plane.connect(), "honest", &[]);
}

#[test]
fn a_turn_stores_so_many_bytes_of_an_address_again() {
    let plane = Plane::with(|setup| setup.broker.transaction.renew_bytes_max = 60_000);
    let mut client = plane.connect();
    let body = "x".repeat(30_000);
    for number in 0..4 {
        let more = [("CHECK_IMMUNITY_TIME_IN_SECONDS", "86400")];
        let fields = but(half_fields(&more), &[("a", &format!("invented{number}"))]);
        assert_eq!(client.ask(SEND_MESSAGE_V2, &fields, body.as_bytes()).code, response_code::SUCCESS);
    }
    let turn = |plane: &Plane| {
        let look = look(plane);
        let transactions = &plane.broker().transactions;
        let mut renewed = 0;
        loop {
            let due = transactions.due(&look);
            let offsets: Vec<i64> =
                due.iter().flat_map(|due| messages(&due.record)).map(|half| half.queue_offset).collect();
            if offsets.is_empty() {
                return renewed;
            }
            renewed += transactions.renew(&offsets, false).unwrap().len();
        }
    };
    let turns: Vec<usize> = (0..60)
        .map(|_| {
            plane.advance_ms(61_000);
            turn(&plane)
        })
        .collect();
    assert_eq!(turns.iter().max(), Some(&2), "the others wait for the next turn");
    // An hour: after 1, 2, 4, 8, 16 and 32 minutes, not every minute.
    assert!(turns.iter().sum::<usize>() <= 4 * 6, "{turns:?}");
}

#[test]
fn only_the_last_outcomes_are_remembered() {
    let plane = Plane::with(|setup| setup.broker.transaction.ended_kept = 1);
    let mut client = plane.connect();
    let first = begin(&plane, &mut client, "one", &[]);
    let second = begin(&plane, &mut client, "two", &[]);
    for end in [&first, &second] {
        assert_eq!(client.ask(END_TRANSACTION, end, b"").code, response_code::SUCCESS);
    }
    let forgotten = client.ask(END_TRANSACTION, &first, b"");
    forgotten.refuses(response_code::TRANSACTION_STATE_UNKNOWN, "ended long ago");
    assert_eq!(client.ask(END_TRANSACTION, &second, b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["one", "two"]);
}

#[test]
fn an_end_that_comes_too_late_waits_for_the_check() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "paid", &[("CHECK_IMMUNITY_TIME_IN_SECONDS", "10")]);
    plane.clock.advance_ms(10_001);
    client.ask(END_TRANSACTION, &end, b"").refuses(response_code::ILLEGAL_OPERATION, "wait for the check");
    let checked = but(end, &[("fromTransactionCheck", "true")]);
    assert_eq!(client.ask(END_TRANSACTION, &checked, b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["paid"]);
}

#[test]
fn a_checked_transaction_ends_under_its_first_and_its_newest_place() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let first = begin(&plane, &mut client, "one", &[]);
    let second = begin(&plane, &mut client, "two", &[]);
    assert_eq!(due(&plane), [0_i64; 0]);
    plane.clock.advance_ms(6_001);
    assert_eq!(due(&plane), [0, 1]);
    let copies = plane.broker().transactions.renew(&[0, 1], true).unwrap();
    let copies: Vec<Message> = copies.iter().flat_map(|copy| messages(copy)).collect();
    let seen: Vec<_> =
        copies.iter().map(|copy| (copy.topic.as_str(), copy.queue_id, copy.queue_offset)).collect();
    assert_eq!(seen, [(TOPIC, 0, 2), (TOPIC, 0, 3)], "as the producer knows them");
    assert!(copies.iter().all(|copy| copy.properties["TRANSACTION_CHECK_TIMES"] == "1"));
    let by_copy = but(end_fields(&copies[0]), &[("fromTransactionCheck", "true")]);
    assert_eq!(client.ask(END_TRANSACTION, &by_copy, b"").code, response_code::SUCCESS);
    assert_eq!(client.ask(END_TRANSACTION, &first, b"").code, response_code::SUCCESS, "ended the same way");
    assert_eq!(client.ask(END_TRANSACTION, &rollback(&second), b"").code, response_code::SUCCESS);
    assert_eq!((plane.bodies(TOPIC, 0), plane.figures().transactions_open), (vec!["one".to_owned()], 0));
}

#[test]
fn a_producer_cannot_count_the_checks_of_its_transaction() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for number in ["15".to_owned(), "9".repeat(5_000)] {
        let counted = [("TRANSACTION_CHECK_TIMES", number.as_str())];
        begin(&plane, &mut client, "m", &counted);
        let half = plane.read(HALF_TOPIC, 0).pop().unwrap();
        assert!(!half.properties.contains_key("TRANSACTION_CHECK_TIMES"), "{:?}", half.properties);
        let sent = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(&counted)), b"m");
        assert_eq!(sent.code, response_code::SUCCESS);
        let other = plane.read(TOPIC, 0).pop().unwrap();
        assert_eq!(other.properties["TRANSACTION_CHECK_TIMES"], number, "other messages keep theirs");
    }
}

#[test]
fn a_transaction_that_was_given_up_can_be_resumed() {
    let plane = Plane::with(|setup| setup.topics.push(topic("given_up")));
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "paid", &[]);
    assert_eq!(plane.broker().transactions.give_up(&[0], "given_up").unwrap(), 1);
    client.ask(END_TRANSACTION, &end, b"").refuses(response_code::SYSTEM_ERROR, "was given up");
    eventually("the message can be looked at", || plane.bodies("given_up", 0) == ["paid"]);
    let parked = plane.read("given_up", 0).remove(0);
    assert!(plane.broker().transactions.resume(parked.physical_offset, "orders").is_err(), "another topic");
    assert!(plane.broker().transactions.resume(parked.physical_offset, "given_up").unwrap());
    let half = plane.read(HALF_TOPIC, 0).pop().unwrap();
    assert_eq!(client.ask(END_TRANSACTION, &end_fields(&half), b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["paid"]);
}

#[test]
fn after_a_restart_open_transactions_are_open_and_ended_ones_ended() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let ended = begin(&plane, &mut client, "ended", &[]);
    let open = begin(&plane, &mut client, "open", &[]);
    assert_eq!(client.ask(END_TRANSACTION, &ended, b"").code, response_code::SUCCESS);
    drop(client);
    let plane = plane.restart(|_| ());
    assert_eq!(plane.figures().transactions_open, 1);
    let mut client = plane.connect();
    client
        .ask(END_TRANSACTION, &rollback(&ended), b"")
        .refuses(response_code::SYSTEM_ERROR, "committed before");
    assert_eq!(client.ask(END_TRANSACTION, &open, b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["ended", "open"]);
}

#[test]
fn a_half_message_that_holds_many_is_taken_apart_when_it_is_committed() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let key = |key: &str| properties(&[("UNIQ_KEY", key)]);
    let parts = [("one", key("A")), ("two", key("B")), ("three", key("C"))];
    let parts: Vec<(&str, &str)> = parts.iter().map(|(body, key)| (*body, key.as_str())).collect();
    let body = String::from_utf8(batch(&parts)).unwrap();
    let count_wrong = half_fields(&[("METAQ_HALF_BATCH", "2")]);
    client
        .ask(SEND_MESSAGE_V2, &count_wrong, body.as_bytes())
        .refuses(response_code::MESSAGE_ILLEGAL, "it holds 3 messages");
    let twice = String::from_utf8(batch(&[parts[0], parts[0]])).unwrap();
    client
        .ask(SEND_MESSAGE_V2, &half_fields(&[("METAQ_HALF_BATCH", "2")]), twice.as_bytes())
        .refuses(response_code::MESSAGE_ILLEGAL, "the same UNIQ_KEY");
    let end = begin(&plane, &mut client, &body, &[("METAQ_HALF_BATCH", "3")]);
    assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS);
    assert_eq!(plane.bodies(TOPIC, 0), ["one", "two", "three"]);
}

#[test]
fn the_delay_of_a_half_message_begins_with_its_commit() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let end = begin(&plane, &mut client, "paid", &[("DELAY", "1")]);
    plane.advance_ms(2_000);
    assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS);
    plane.advance_ms(500);
    assert_eq!(plane.bodies(TOPIC, 0), [""; 0]);
    plane.advance_ms(501);
    eventually("the message is delivered", || plane.bodies(TOPIC, 0) == ["paid"]);
}

#[test]
fn open_transactions_are_listed_by_age_and_ended_by_hand() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let transactions = &plane.broker().transactions;
    let begun: Vec<i64> = (0..3)
        .map(|number| {
            let fields = but(half_fields(&[]), &[("g", &plane.clock.now_ms().to_string())]);
            let body = format!("m{number}");
            assert_eq!(client.ask(SEND_MESSAGE_V2, &fields, body.as_bytes()).code, response_code::SUCCESS);
            plane.advance_ms(10);
            plane.read(HALF_TOPIC, 0).pop().unwrap().physical_offset
        })
        .collect();
    // The first one is stored again behind the others and is still the oldest.
    transactions.renew(&[0], true).unwrap();
    let listed = |count_max| {
        let open = transactions.list(None, &Look { count_max, ..look(&plane) });
        let halves = open.transactions.iter().flat_map(|open| messages(&open.head));
        (halves.map(|half| (half.queue_offset, half.body)).collect::<Vec<_>>(), open.total)
    };
    let none = String::new;
    assert_eq!(listed(2), (vec![(3, none()), (1, none())], 3), "without their bodies");
    assert_eq!(transactions.list(Some(PRODUCER_GROUP), &look(&plane)).total, 3);
    let others = transactions.list(Some("other"), &look(&plane));
    assert_eq!((others.transactions.len(), others.total), (0, 0));
    assert_eq!(transactions.decide(begun[0], End::Committed).unwrap(), Decided::Done);
    let before = Decided::Before(End::Committed);
    assert_eq!(transactions.decide(begun[0], End::RolledBack).unwrap(), before);
    assert!(matches!(transactions.find(begun[0], &look(&plane)), Ok(Err(found)) if found == before));
    assert_eq!(transactions.decide(begun[1], End::RolledBack).unwrap(), Decided::Done);
    assert_eq!((plane.bodies(TOPIC, 0), listed(9)), (vec!["m0".to_owned()], (vec![(2, none())], 1)));
    let committed = plane.read(TOPIC, 0).remove(0).physical_offset;
    for no_half in [committed, begun[0] + 1, i64::MAX] {
        assert!(matches!(transactions.decide(no_half, End::Committed), Err(ServerError::NoRecord(_))));
    }
}

#[test]
fn an_end_by_hand_is_done_only_when_it_is_in_the_log() {
    for end in [End::Committed, End::RolledBack] {
        let plane = Plane::start();
        let mut client = plane.connect();
        begin(&plane, &mut client, "m", &[]);
        let half = plane.read(HALF_TOPIC, 0).pop().unwrap().physical_offset;
        plane.store.fence("not now");
        let refused = plane.broker().transactions.decide(half, end);
        assert!(
            matches!(refused, Err(ServerError::Store(StoreError::Fenced { .. }))),
            "{end:?}: {refused:?}"
        );
        assert_eq!(plane.figures().transactions_open, 1, "{end:?}: the log says so too");
        plane.store.lift_fence();
        assert_eq!(plane.broker().transactions.decide(half, end).unwrap(), Decided::Done);
        let plane = plane.restart(|_| ());
        assert_eq!(plane.figures().transactions_open, 0, "{end:?}");
    }
}

#[test]
fn after_a_failed_sync_no_transaction_is_ended_by_hand() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let halves = ["one", "two"].map(|body| {
        begin(&plane, &mut client, body, &[]);
        plane.read(HALF_TOPIC, 0).pop().unwrap().physical_offset
    });
    plane.disk.fail(Call::SyncMapped, "commitlog", ErrorKind::Other);
    for half in halves {
        assert!(plane.broker().transactions.decide(half, End::RolledBack).is_err());
    }
}

#[test]
fn a_transaction_is_checked_after_the_time_in_the_list() {
    let plane = Plane::start();
    let mut client = plane.connect();
    begin(&plane, &mut client, "m", &[("CHECK_IMMUNITY_TIME_IN_SECONDS", "20")]);
    let open = plane.broker().transactions.list(None, &look(&plane));
    let wait_ms = open.transactions[0].check_from_ms - plane.clock.now_ms();
    plane.advance_ms(wait_ms);
    assert!(due(&plane).is_empty());
    plane.advance_ms(1);
    assert_eq!(due(&plane), [0]);
}
