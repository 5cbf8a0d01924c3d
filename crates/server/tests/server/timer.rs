//! Messages that wait: delay levels, moments of delivery, recalls, and copies of stored messages.

use metaq_server::{DelayedSearch, Recall, RecallOutcome, Resend};
use metaq_store::{SCHEDULE_TOPIC, TIMER_TOPIC};

use crate::support::request_code::SEND_MESSAGE_V2;
use crate::support::*;

fn put(client: &mut Client, more: &[(&str, &str)], body: &str) -> Answer {
    client.ask(SEND_MESSAGE_V2, &send_fields(&properties(more)), body.as_bytes())
}

#[test]
fn a_message_waits_for_its_delay_level() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for (level, body) in [("1", "soon"), ("2", "later"), ("99", "latest"), ("0", "now")] {
        let answer = put(&mut client, &[("DELAY", level)], body);
        assert_eq!((answer.code, answer.number("queueId")), (response_code::SUCCESS, 0));
    }
    assert_eq!(plane.bodies(TOPIC, 0), ["now"]);
    let waiting = |queue_id| plane.store.max_offset(SCHEDULE_TOPIC, queue_id);
    assert_eq!((waiting(0), waiting(1)), (1, 2), "a level that is too high counts as the highest");
    plane.advance_ms(999);
    assert_eq!(plane.bodies(TOPIC, 0).len(), 1);
    plane.advance_ms(1);
    eventually("the first level is delivered", || plane.bodies(TOPIC, 0) == ["now", "soon"]);
    plane.advance_ms(4_000);
    eventually("everything is delivered", || plane.bodies(TOPIC, 0) == ["now", "soon", "later", "latest"]);
    assert!(!plane.read(TOPIC, 0)[1].properties.contains_key("DELAY"));
    let offsets = plane.broker().delay_levels.offsets(PATIENCE).unwrap();
    assert_eq!(offsets, [(1, 1), (2, 2)], "a restart continues here");
}

#[test]
fn many_messages_of_one_delay_level_do_not_hold_up_the_others() {
    let plane = Plane::start();
    let mut client = plane.connect();
    put(&mut client, &[("DELAY", "2")], "honest");
    let mut bytes = Vec::new();
    for _ in 0..1_500 {
        client.frame(&mut bytes, SEND_MESSAGE_V2, 0, &send_fields(&properties(&[("DELAY", "1")])), b"many");
    }
    client.write(&bytes);
    client.skip_answers(1_500);
    plane.advance_ms(5_000);
    let place = || plane.bodies(TOPIC, 0).iter().position(|body| body == "honest");
    eventually("all are delivered", || plane.store.max_offset(TOPIC, 0) == 1_501);
    assert!(place().is_some_and(|place| place <= 512), "after a turn of the other level, not {:?}", place());
}

#[test]
fn a_delayed_message_wakes_a_held_pull() {
    let plane = Plane::start();
    let mut client = plane.connect();
    put(&mut client, &[("DELAY", "1")], "soon");
    let held = but(pull_fields(0), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")]);
    client.send(request_code::PULL_MESSAGE, &held, b"");
    client.expect_silence();
    plane.advance_ms(1_000);
    assert_eq!(client.answer().bodies(), ["soon"]);
}

#[test]
fn a_message_waits_for_any_moment() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let at = (START_MS + 3_000).to_string();
    put(&mut client, &[("TIMER_DELIVER_MS", &at)], "at a moment");
    put(&mut client, &[("TIMER_DELAY_MS", "1500")], "after milliseconds");
    put(&mut client, &[("TIMER_DELAY_SEC", "2")], "after seconds");
    put(&mut client, &[("TIMER_DELAY_SEC", "0")], "now");
    assert_eq!((plane.bodies(TOPIC, 0), plane.store.max_offset(TIMER_TOPIC, 0)), (vec!["now".to_owned()], 3));
    plane.advance_ms(2_000);
    let expected = ["now", "after milliseconds", "after seconds"];
    eventually("two are delivered", || plane.bodies(TOPIC, 0) == expected);
    plane.advance_ms(1_000);
    eventually("all are delivered", || plane.bodies(TOPIC, 0).len() == 4);
    assert!(!plane.read(TOPIC, 0)[3].properties.contains_key("TIMER_OUT_MS"));
    assert_eq!(plane.figures().timers.delivered, 3);
}

#[test]
fn a_moment_that_cannot_be_kept_is_refused() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let answer = put(&mut client, &[("TIMER_DELAY_SEC", "3601")], "m");
    answer.refuses(response_code::MESSAGE_ILLEGAL, "timer_max_delay_s");
    let answer = put(&mut client, &[("TIMER_DELIVER_MS", "tomorrow")], "m");
    answer.refuses(response_code::MESSAGE_ILLEGAL, "TIMER_DELIVER_MS");
    assert_eq!(plane.store.end_offset(), 0);
}

#[test]
fn a_waiting_message_can_be_recalled_until_it_is_due() {
    let plane = Plane::start();
    plane.broker().due_times.set_recall_key(b"secret".to_vec());
    let mut client = plane.connect();
    let answer = put(&mut client, &[("UNIQ_KEY", "K1"), ("TIMER_DELAY_SEC", "2")], "recalled");
    assert!(!answer.field("recallHandle").is_empty());
    put(&mut client, &[("UNIQ_KEY", "K2"), ("TIMER_DELAY_SEC", "2")], "kept");
    let recall = |key: &str, due_ms| Recall {
        topic: TOPIC.to_owned(),
        unique_key: key.to_owned(),
        due_ms,
        producer_group: PRODUCER_GROUP.to_owned(),
        born_host: ([127, 0, 0, 1], 1).into(),
    };
    assert_eq!(plane.broker().timers.recall(&recall("K1", START_MS + 2_000)).unwrap(), RecallOutcome::Stored);
    plane.advance_ms(2_000);
    eventually("the other one is delivered", || plane.bodies(TOPIC, 0) == ["kept"]);
    assert_eq!(plane.figures().timers.recalled, 1);
    assert_eq!(
        plane.broker().timers.recall(&recall("K2", START_MS + 2_000)).unwrap(),
        RecallOutcome::TooLate
    );
}

#[test]
fn a_second_recall_is_refused_however_far_the_time_is() {
    let plane = Plane::start();
    let mut client = plane.connect();
    put(&mut client, &[("UNIQ_KEY", "K"), ("TIMER_DELAY_SEC", "86400")], "m");
    put(&mut client, &[("UNIQ_KEY", "L"), ("TIMER_DELAY_SEC", "86400")], "m");
    let recall = |key: &str| Recall {
        topic: TOPIC.to_owned(),
        unique_key: key.to_owned(),
        due_ms: START_MS + 86_400_000,
        producer_group: String::new(),
        born_host: ([127, 0, 0, 1], 1).into(),
    };
    let timers = &plane.broker().timers;
    assert_eq!(timers.recall(&recall("K")).unwrap(), RecallOutcome::Stored);
    assert_eq!(timers.recall(&recall("K")).unwrap(), RecallOutcome::RecalledBefore);
    assert_eq!(timers.recall(&recall("L")).unwrap(), RecallOutcome::Stored);
    let end = plane.store.end_offset();
    // Later only the log of timers knows it.
    plane.advance_ms(60_000);
    assert_eq!(timers.recall(&recall("L")).unwrap(), RecallOutcome::RecalledBefore);
    assert_eq!(plane.store.end_offset(), end, "nothing was stored");
}

#[test]
fn a_message_is_listed_as_recalled_if_its_own_moment_was_recalled() {
    let plane = Plane::start();
    let mut client = plane.connect();
    // The sender tried again: the same key, due a millisecond later.
    for _ in 0..2 {
        put(&mut client, &[("UNIQ_KEY", "K"), ("TIMER_DELAY_MS", "120000")], "m");
        plane.advance_ms(1);
    }
    let timers = &plane.broker().timers;
    let waiting: Vec<i64> =
        plane.read(TIMER_TOPIC, 0).iter().map(|message| message.physical_offset).collect();
    let are_recalled =
        || [waiting[0], waiting[1]].map(|place| timers.find(place).is_some_and(|found| found.is_recalled));
    let recall = Recall {
        topic: TOPIC.to_owned(),
        unique_key: "K".to_owned(),
        due_ms: START_MS + 120_000,
        producer_group: String::new(),
        born_host: ([127, 0, 0, 1], 1).into(),
    };
    assert_eq!(timers.recall(&recall).unwrap(), RecallOutcome::Stored);
    eventually("the recall is read", || are_recalled() == [true, false]);
    plane.advance_ms(120_000);
    eventually("the other one is delivered", || plane.bodies(TOPIC, 0) == ["m"]);
    assert_eq!(plane.figures().timers.recalled, 1);
}

#[test]
fn delay_levels_are_listed_together_by_due_time() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for level in ["2", "1", "2", "1"] {
        put(&mut client, &[("DELAY", level)], "m");
        plane.advance_ms(10);
    }
    let listed = |from_ms, to_ms, count_max| {
        let search =
            DelayedSearch { from_ms: START_MS + from_ms, to_ms: START_MS + to_ms, count_max, topic: None };
        let listing = plane.broker().delay_levels.list(&search);
        let lines =
            listing.messages.iter().map(|message| (message.level.unwrap(), message.due_ms - START_MS));
        (lines.collect::<Vec<_>>(), listing.is_cut)
    };
    let all = vec![(1, 1_010), (1, 1_030), (2, 5_000), (2, 5_020)];
    assert_eq!(listed(0, 9_000, 9), (all.clone(), false));
    assert_eq!(listed(0, 9_000, 3), (all[..3].to_vec(), true));
    assert_eq!(listed(1_011, 5_020, 9), (all[1..3].to_vec(), false));
}

#[test]
fn one_search_through_all_delay_levels_has_one_limit() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let search = DelayedSearch { from_ms: 0, to_ms: i64::MAX, count_max: 9, topic: Some("other".to_owned()) };
    let is_cut = || plane.broker().delay_levels.list(&search).is_cut;
    for (level, is_too_much) in [("1", false), ("2", true)] {
        let mut bytes = Vec::new();
        for _ in 0..2_100 {
            client.frame(
                &mut bytes,
                SEND_MESSAGE_V2,
                0,
                &send_fields(&properties(&[("DELAY", level)])),
                b"m",
            );
        }
        client.write(&bytes);
        client.skip_answers(2_100);
        assert_eq!(is_cut(), is_too_much, "level {level}");
    }
}

#[test]
fn without_recalls_there_are_no_handles() {
    let plane = Plane::with(|setup| setup.broker.timer.recall_messages = false);
    let mut client = plane.connect();
    let answer = put(&mut client, &[("TIMER_DELAY_SEC", "2")], "m");
    assert!(!answer.fields.contains_key("recallHandle"));
    let recall = [("TIMER_DELAY_SEC", "2"), ("TIMER_DEL_UNIQKEY", "orders+K")];
    put(&mut client, &recall, "m").refuses(response_code::NO_PERMISSION, "recall_messages");
}

#[test]
fn a_property_recalls_only_where_the_operator_allows_it() {
    let plane = Plane::with(|setup| setup.broker.timer.recall_by_property = false);
    let mut client = plane.connect();
    let recall = [("TIMER_DELAY_SEC", "2"), ("TIMER_DEL_UNIQKEY", "orders+K")];
    put(&mut client, &recall, "m").refuses(response_code::NO_PERMISSION, "recall_by_property");
}

#[test]
fn handles_are_signed_and_without_a_key_there_are_none() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let handle = |client: &mut _, key: &str| {
        let answer = put(client, &[("TIMER_DELAY_SEC", "2"), ("UNIQ_KEY", key)], "m");
        answer.fields.get("recallHandle").cloned()
    };
    assert_eq!(handle(&mut client, "K"), None);
    plane.broker().due_times.set_recall_key(b"secret".to_vec());
    let first = handle(&mut client, "K").unwrap();
    assert_eq!(handle(&mut client, "K").unwrap(), first);
    let other = Plane::start();
    other.broker().due_times.set_recall_key(b"another".to_vec());
    assert_ne!(handle(&mut other.connect(), "K").unwrap(), first);
}

#[test]
fn after_a_restart_waiting_messages_wait_on() {
    let plane = Plane::start();
    let mut client = plane.connect();
    put(&mut client, &[("DELAY", "1")], "level");
    put(&mut client, &[("TIMER_DELAY_SEC", "2")], "moment");
    drop(client);
    let plane = plane.restart(|_| ());
    assert_eq!(plane.bodies(TOPIC, 0), [""; 0]);
    plane.advance_ms(2_000);
    eventually("both are delivered", || {
        let mut bodies = plane.bodies(TOPIC, 0);
        bodies.sort();
        bodies == ["level", "moment"]
    });
}

#[test]
fn a_stored_message_is_stored_again_under_another_topic_at_once_or_after_a_delay() {
    let plane = Plane::with(|setup| setup.topics.push(topic("%RETRY%readers")));
    let mut client = plane.connect();
    put(&mut client, &[("UNIQ_KEY", "K"), ("TAGS", "a"), ("X", "1")], "m");
    let physical_offset = plane.read(TOPIC, 0)[0].physical_offset;
    let resend = |delay_level| Resend {
        physical_offset,
        topic: "%RETRY%readers".to_owned(),
        queue_id: 1,
        reconsume_times: 2,
        delay_level,
        drop: vec!["X".to_owned()],
        set: vec![("RETRY_TOPIC".to_owned(), TOPIC.to_owned())],
        system_names: Vec::new(),
    };
    plane.broker().sends.resend(&resend(0)).unwrap();
    let copy = plane.read("%RETRY%readers", 1).remove(0);
    assert_eq!((copy.body.as_str(), copy.reconsume_times), ("m", 2));
    assert_eq!((copy.properties["UNIQ_KEY"].as_str(), copy.properties["RETRY_TOPIC"].as_str()), ("K", TOPIC));
    assert!(!copy.properties.contains_key("X"));
    plane.broker().sends.resend(&resend(1)).unwrap();
    assert_eq!(plane.store.max_offset("%RETRY%readers", 1), 1);
    plane.advance_ms(1_000);
    eventually("the delayed copy is delivered", || plane.store.max_offset("%RETRY%readers", 1) == 2);
    let nowhere = Resend { physical_offset: 1, ..resend(0) };
    assert!(plane.broker().sends.resend(&nowhere).is_err());
}
