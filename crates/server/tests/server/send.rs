//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).

use metaq_store::SCHEDULE_TOPIC;
use metaq_wire::{Encoding, parse_message_id};

use crate::support::request_code::{
    SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2, SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2,
};
use crate::support::*;

/// The fields of SEND_MESSAGE, which has the long names.
fn long_fields(properties: &str) -> Fields<'static> {
    vec![
        ("producerGroup", PRODUCER_GROUP.to_owned()),
        ("topic", TOPIC.to_owned()),
        ("defaultTopic", "TBW102".to_owned()),
        ("defaultTopicQueueNums", "4".to_owned()),
        ("queueId", "2".to_owned()),
        ("sysFlag", "0".to_owned()),
        ("bornTimestamp", START_MS.to_string()),
        ("flag", "0".to_owned()),
        ("properties", properties.to_owned()),
    ]
}

fn batch_fields() -> Fields<'static> {
    but(send_fields(""), &[("m", "true")])
}

#[test]
fn a_message_is_stored_and_acknowledged_in_either_form_and_encoding() {
    let plane = Plane::start();
    let marks = properties(&[("UNIQ_KEY", "K1"), ("TAGS", "a")]);
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut client = plane.connect_with(encoding);
        let requests = [(SEND_MESSAGE, long_fields(&marks), 2), (SEND_MESSAGE_V2, send_fields(&marks), 0)];
        for (code, fields, queue_id) in requests {
            let queue_offset = plane.read(TOPIC, queue_id).len() as i64;
            let answer = client.ask(code, &fields, b"body");
            assert_eq!((answer.code, answer.remark.as_str()), (response_code::SUCCESS, ""));
            assert_eq!(answer.number("queueId"), i64::from(queue_id));
            assert_eq!(answer.number("queueOffset"), queue_offset);
            assert_eq!(answer.field("transactionId"), "K1");
            assert_eq!((answer.field("MSG_REGION"), answer.field("TRACE_ON")), ("r1", "true"));
            let stored = plane.read(TOPIC, queue_id).pop().unwrap();
            assert_eq!(stored.body, "body");
            let (host, physical_offset) = parse_message_id(answer.field("msgId")).unwrap();
            assert_eq!(
                (host.to_string().as_str(), physical_offset),
                ("127.0.0.1:10911", stored.physical_offset)
            );
        }
    }
    assert_eq!(plane.counts().messages_in, 4);
    assert_eq!(plane.counts().bytes_in, 16);
}

#[test]
fn a_stored_message_carries_what_the_broker_adds() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.ask(SEND_MESSAGE_V2, &send_fields("TAGS\u{1}a"), b"m");
    let stored = plane.read(TOPIC, 0).remove(0);
    let of = |name: &str| stored.properties.get(name).map(String::as_str);
    assert_eq!((of("TAGS"), of("MSG_REGION"), of("TRACE_ON")), (Some("a"), Some("r1"), Some("true")));
    assert_eq!(of("CLUSTER"), Some("c1"));
    assert_eq!(of("UNIQ_KEY").map(str::len), Some(32), "a message without a key gets one");
    // A forwarded message has these properties already.
    let complete = properties(&[("UNIQ_KEY", "K"), ("CLUSTER", "other"), ("POP_CK", "x"), ("TAGS", "b")]);
    client.ask(SEND_MESSAGE_V2, &send_fields(&complete), b"m");
    let names: Vec<String> = plane.read(TOPIC, 0).remove(1).properties.into_keys().collect();
    assert_eq!(names, ["CLUSTER", "TAGS", "UNIQ_KEY"]);
}

#[test]
fn a_batch_is_stored_message_by_message() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put("before");
    let body = batch(&[("one", &properties(&[("UNIQ_KEY", "A")])), ("two", ""), ("three", "")]);
    let answer = client.ask(SEND_BATCH_MESSAGE, &batch_fields(), &body);
    assert_eq!(answer.code, response_code::SUCCESS);
    assert_eq!((answer.number("queueId"), answer.number("queueOffset")), (0, 1));
    assert_eq!(plane.bodies(TOPIC, 0), ["before", "one", "two", "three"]);
    let stored: Vec<i64> = plane.read(TOPIC, 0)[1..].iter().map(|message| message.physical_offset).collect();
    let named: Vec<i64> =
        answer.field("msgId").split(',').map(|id| parse_message_id(id).unwrap().1).collect();
    assert_eq!(named, stored);
    assert_eq!(plane.counts().messages_in, 4);
}

#[test]
fn queues_take_turns_where_the_sender_names_none() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let fields = but(send_fields(""), &[("e", "-1")]);
    let queues: Vec<i64> =
        (0..8).map(|_| client.ask(SEND_MESSAGE_V2, &fields, b"m").number("queueId")).collect();
    assert_eq!(queues, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn a_priority_chooses_the_queue() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let fields = send_fields(&properties(&[("_SYS_MSG_PRIORITY_", "3")]));
    assert_eq!(client.ask(SEND_MESSAGE_V2, &fields, b"urgent").number("queueId"), 3);
    assert_eq!(plane.bodies(TOPIC, 3), ["urgent"]);
}

#[test]
fn a_message_that_may_not_be_stored_is_refused_with_its_reason() {
    let plane = Plane::with(|setup| {
        let mut read_only = topic("read_only");
        read_only.permission = 4;
        let mut system = topic("system");
        system.client_writable = false;
        setup.topics.extend([read_only, system, topic("%RETRY%readers")]);
    });
    let mut client = plane.connect();
    let plain = || send_fields("");
    let long = "x".repeat(64 * 1024 + 1);
    let properties_too_long = properties(&[("P", &"x".repeat(32_700))]);
    let no_group = "the producer group must have 1 to 255";
    let refused = [
        (
            but(plain(), &[("b", "read_only")]),
            "m",
            response_code::NO_PERMISSION,
            "topic[read_only] is not writable",
        ),
        (but(plain(), &[("b", "system")]), "m", response_code::NO_PERMISSION, "is a system topic"),
        (but(plain(), &[("a", "")]), "m", response_code::MESSAGE_ILLEGAL, no_group),
        (but(plain(), &[("a", "a b")]), "m", response_code::MESSAGE_ILLEGAL, no_group),
        (but(plain(), &[("a", &"g".repeat(256))]), "m", response_code::MESSAGE_ILLEGAL, no_group),
        (
            but(plain(), &[("e", "4")]),
            "m",
            response_code::INVALID_PARAMETER,
            "queue 4 is outside topic[orders]",
        ),
        (but(plain(), &[("b", "")]), "m", response_code::SYSTEM_ERROR, "topic"),
        (but(plain(), &[("e", "first")]), "m", response_code::SYSTEM_ERROR, "queueId"),
        (plain(), long.as_str(), response_code::MESSAGE_ILLEGAL, "message_size_bytes_max"),
        (
            send_fields(&properties_too_long),
            "m",
            response_code::MESSAGE_ILLEGAL,
            "at most 32767 can be stored",
        ),
    ];
    for (fields, body, code, remark_part) in &refused {
        client.ask(SEND_MESSAGE_V2, fields, body.as_bytes()).refuses(*code, remark_part);
    }
    plane.broker().policy.set_permission(4);
    client
        .ask(SEND_MESSAGE_V2, &plain(), b"m")
        .refuses(response_code::NO_PERMISSION, "broker[b1] does not accept messages");
    assert_eq!(plane.counts().refused, refused.len() as u64 + 1);
    assert_eq!((plane.counts().messages_in, plane.store.end_offset()), (0, 0));
}

#[test]
fn a_batch_that_may_not_be_stored_is_refused_whole() {
    let plane = Plane::with(|setup| setup.topics.push(topic("%RETRY%readers")));
    let mut client = plane.connect();
    let good = batch(&[("one", ""), ("two", "")]);
    let delayed = batch(&[("one", ""), ("two", &properties(&[("DELAY", "1")]))]);
    let timed = batch(&[("one", &properties(&[("TIMER_DELAY_SEC", "1")]))]);
    let half = batch(&[("one", &properties(&[("TRAN_MSG", "true")]))]);
    let one_by_one = "send its messages one by one";
    let refused: [(&[u8], &str); 5] = [
        (&[], "holds no message"),
        (&good[..good.len() - 1], "batch"),
        (&delayed, one_by_one),
        (&timed, one_by_one),
        (&half, one_by_one),
    ];
    for (body, remark_part) in refused {
        let answer = client.ask(SEND_BATCH_MESSAGE, &batch_fields(), body);
        answer.refuses(response_code::MESSAGE_ILLEGAL, remark_part);
    }
    let retry = but(batch_fields(), &[("b", "%RETRY%readers")]);
    client.ask(SEND_BATCH_MESSAGE, &retry, &good).refuses(response_code::MESSAGE_ILLEGAL, "retry topic");
    assert_eq!(plane.store.end_offset(), 0);
}

#[test]
fn an_unknown_topic_crosses_and_does_not_exist_when_it_comes_back() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let fields = but(send_fields(""), &[("b", "later")]);
    client.send(SEND_MESSAGE_V2, &fields, b"m");
    let crossed = plane.crossed();
    assert_eq!((crossed.code, &crossed.body[..]), (SEND_MESSAGE_V2, &b"m"[..]));
    plane.listener.shared.handle_again(&crossed).unwrap();
    client.answer().refuses(response_code::TOPIC_NOT_EXIST, "topic[later] does not exist");
    // Python may also create the topic.
    client.send(SEND_MESSAGE_V2, &fields, b"m");
    let crossed = plane.crossed();
    plane.broker().policy.put_topics(vec![topic("later")]);
    plane.listener.shared.handle_again(&crossed).unwrap();
    assert_eq!(client.answer().code, response_code::SUCCESS);
    assert_eq!(plane.bodies("later", 0), ["m"]);
    assert_eq!(plane.counts().crossed, 2);
}

#[test]
fn a_oneway_is_stored_or_refused_without_a_word() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send_oneway(SEND_MESSAGE_V2, &send_fields(""), b"kept");
    client.send_oneway(SEND_MESSAGE_V2, &but(send_fields(""), &[("e", "9")]), b"refused");
    client.send_oneway(SEND_BATCH_MESSAGE, &batch_fields(), &batch(&[("one", "")]));
    client.expect_silence();
    eventually("both messages can be read", || plane.bodies(TOPIC, 0) == ["kept", "one"]);
    assert_eq!(plane.counts().refused, 1);
}

#[test]
fn a_message_that_was_tried_too_often_goes_to_the_dead_letters() {
    let plane = Plane::with(|setup| {
        setup.topics.extend([topic("%RETRY%readers"), topic("%DLQ%readers")]);
        setup.groups[0].retry_times_max = 3;
    });
    let mut client = plane.connect();
    let resend = |times: &str, more: &[(&'static str, &str)]| {
        let fields = but(send_fields(""), &[("b", "%RETRY%readers"), ("e", "1"), ("j", times)]);
        but(fields, more)
    };
    let queue_id = |answer: Answer| answer.number("queueId");
    assert_eq!(queue_id(client.ask(SEND_MESSAGE_V2, &resend("2", &[]), b"again")), 1);
    assert_eq!(queue_id(client.ask(SEND_MESSAGE_V2, &resend("3", &[]), b"dead")), 0);
    assert_eq!(queue_id(client.ask(SEND_MESSAGE_V2, &resend("3", &[("l", "9")]), b"its own limit")), 1);
    assert_eq!(queue_id(client.ask(SEND_MESSAGE_V2, &resend("1", &[("l", "1")]), b"dead too")), 0);
    // A dead letter is stored at once, even with a delay level.
    let delayed = but(resend("9", &[]), &[("i", &properties(&[("DELAY", "2")]))]);
    client.ask(SEND_MESSAGE_V2, &delayed, b"dead at once");
    assert_eq!(plane.bodies("%RETRY%readers", 1), ["again", "its own limit"]);
    assert_eq!(plane.bodies("%DLQ%readers", 0), ["dead", "dead too", "dead at once"]);
    assert_eq!(plane.store.max_offset(SCHEDULE_TOPIC, 1), 0);
}

#[test]
fn a_retry_topic_of_an_unknown_group_crosses() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send(SEND_MESSAGE_V2, &but(send_fields(""), &[("b", "%RETRY%nobody"), ("j", "1")]), b"m");
    plane.listener.shared.handle_again(&plane.crossed()).unwrap();
    client.answer().refuses(response_code::SUBSCRIPTION_GROUP_NOT_EXIST, "%RETRY%nobody");
}

#[test]
fn a_reply_is_stored_only_when_python_hands_it_back() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for (code, fields) in [(SEND_REPLY_MESSAGE, long_fields("")), (SEND_REPLY_MESSAGE_V2, send_fields(""))] {
        client.send(code, &fields, b"reply");
        let crossed = plane.crossed();
        assert_eq!(plane.counts().messages_in, u64::from(code == SEND_REPLY_MESSAGE_V2));
        plane.listener.shared.handle_again(&crossed).unwrap();
        assert_eq!(client.answer().code, response_code::SUCCESS);
    }
    assert_eq!(
        (plane.bodies(TOPIC, 2), plane.bodies(TOPIC, 0)),
        (vec!["reply".to_owned()], vec!["reply".to_owned()])
    );
}

#[test]
fn only_the_broker_makes_a_message_part_of_a_transaction() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("f", "13")]), b"m");
    assert_eq!(plane.read(TOPIC, 0)[0].system_flag, 1, "the bits 8 and 4 are the broker's");
}

#[test]
fn properties_are_measured_before_anything_goes_through_them() {
    let plane = Plane::start();
    let mut client = plane.connect_with(Encoding::Binary);
    let long = "POP_CK\u{1}x\u{2}".repeat(60_000);
    // All of it would be removed, and what is left would fit.
    client
        .ask(SEND_MESSAGE_V2, &send_fields(&long), b"m")
        .refuses(response_code::MESSAGE_ILLEGAL, "properties have 540000 bytes; at most 32767");
    let unknown = but(send_fields(&long), &[("b", "no-such-topic")]);
    client.ask(SEND_MESSAGE_V2, &unknown, b"m").refuses(response_code::MESSAGE_ILLEGAL, "at most 32767");
    let short = "POP_CK\u{1}x\u{2}".repeat(3_000);
    assert_eq!(client.ask(SEND_MESSAGE_V2, &send_fields(&short), b"m").code, response_code::SUCCESS);
    assert!(!plane.read(TOPIC, 0)[0].properties.contains_key("POP_CK"));
}

#[test]
fn the_messages_of_a_batch_have_a_limited_number_of_keys_together() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let many = properties(&[("KEYS", &"k ".repeat(64))]);
    let body = batch(&[("x", many.as_str()); 200]);
    client
        .ask(SEND_BATCH_MESSAGE, &batch_fields(), &body)
        .refuses(response_code::MESSAGE_ILLEGAL, "in a batch of its size (message_keys_max)");
    let inside: Vec<String> = (0..200).map(|number| format!("UNIQ_KEY\u{1}{number}\u{2}{many}")).collect();
    let inside: Vec<(&str, &str)> = inside.iter().map(|properties| ("x", properties.as_str())).collect();
    let half = properties(&[("UNIQ_KEY", "H"), ("TRAN_MSG", "true"), ("METAQ_HALF_BATCH", "200")]);
    client
        .ask(SEND_MESSAGE_V2, &send_fields(&half), &batch(&inside))
        .refuses(response_code::MESSAGE_ILLEGAL, "in a batch of its size (message_keys_max)");
    assert_eq!(plane.store.end_offset(), 0, "nothing is kept of what was refused");
    let few = properties(&[("KEYS", "a b c d")]);
    let body = batch(&[("x", few.as_str()); 200]);
    assert_eq!(client.ask(SEND_BATCH_MESSAGE, &batch_fields(), &body).code, response_code::SUCCESS);
}

#[test]
fn an_address_has_a_budget_for_keys_that_its_bytes_do_not_pay_for() {
    let plane = Plane::with(|setup| setup.broker.message_keys_per_second = 100);
    let mut client = plane.connect();
    let many = send_fields(&properties(&[("KEYS", &"k ".repeat(64))]));
    let refused = (0..20).map(|_| client.ask(SEND_MESSAGE_V2, &many, b"m")).find(|answer| answer.code != 0);
    refused.unwrap().refuses(response_code::SYSTEM_BUSY, "100 per second (message_keys_per_second)");
    client.put("without keys");
    let mut other = Client::connect_from([127, 0, 0, 9], plane.listener.port());
    assert_eq!(other.ask(SEND_MESSAGE_V2, &many, b"m").code, response_code::SUCCESS, "others have their own");
    plane.clock.advance_ms(1_000);
    assert_eq!(client.ask(SEND_MESSAGE_V2, &many, b"m").code, response_code::SUCCESS, "time pays");
}

#[test]
fn a_message_has_a_limited_number_of_keys() {
    let plane = Plane::with(|setup| {
        setup.broker.message_keys_max = 3;
        setup.broker.transaction.message_keys_max = 3;
    });
    let mut client = plane.connect();
    let with_keys = |keys: &str| properties(&[("UNIQ_KEY", "K"), ("KEYS", keys)]);
    for keys in ["a b c", "  a   b  c  ", "a-very-long-key another-very-long-key"] {
        let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&with_keys(keys)), b"m");
        assert_eq!(answer.code, response_code::SUCCESS, "{keys}");
    }
    let limit = "keys; this broker accepts at most 3 in a message of its size (message_keys_max)";
    let many = with_keys("a b c d");
    client.ask(SEND_MESSAGE_V2, &send_fields(&many), b"m").refuses(response_code::MESSAGE_ILLEGAL, limit);
    let body = batch(&[("one", ""), ("two", many.as_str())]);
    client.ask(SEND_BATCH_MESSAGE, &batch_fields(), &body).refuses(response_code::MESSAGE_ILLEGAL, limit);
    let half = properties(&[("UNIQ_KEY", "H"), ("TRAN_MSG", "true"), ("METAQ_HALF_BATCH", "1")]);
    let body = batch(&[("one", many.as_str())]);
    client.ask(SEND_MESSAGE_V2, &send_fields(&half), &body).refuses(response_code::MESSAGE_ILLEGAL, limit);
    assert_eq!(plane.read(TOPIC, 0).len(), 3, "nothing is kept of what was refused");
    let traces = (0..500).map(|number| format!("{number:032}")).collect::<Vec<_>>().join(" ");
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&with_keys(&traces)), &[b'x'; 500]);
    assert_eq!(answer.code, response_code::SUCCESS, "a long message pays for its keys");
    let words = with_keys(&"a ".repeat(16_200));
    client
        .ask(SEND_MESSAGE_V2, &send_fields(&words), b"m")
        .refuses(response_code::MESSAGE_ILLEGAL, "16200 keys; this broker accepts at most 1016");
}
