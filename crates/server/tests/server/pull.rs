//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

use std::sync::Arc;

use metaq_server::{Member, Refusal};
use metaq_store::expression::Operation;
use metaq_store::faulty_disk::Call as DiskCall;
use metaq_store::{Call, Filter, Program};
use metaq_wire::{Encoding, tag_code};

use crate::support::request_code::{
    LITE_PULL_MESSAGE, PULL_MESSAGE, QUERY_CONSUMER_OFFSET, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2,
};
use crate::support::*;

const COMMIT: i32 = 1;
const SUSPEND: i32 = 2;
const SUBSCRIPTION: i32 = 4;

/// A pull that waits for `suspend_ms` if it finds nothing.
fn held_fields(queue_offset: i64, suspend_ms: u64) -> Fields<'static> {
    let (flag, suspend) = (SUSPEND.to_string(), suspend_ms.to_string());
    but(pull_fields(queue_offset), &[("sysFlag", &flag), ("suspendTimeoutMillis", &suspend)])
}

fn put_tagged(client: &mut Client, tag: &str, body: &str) {
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&properties(&[("TAGS", tag)])), body.as_bytes());
    assert_eq!(answer.code, response_code::SUCCESS);
}

/// A group that reads only messages with this tag.
fn put_group_with_tag(plane: &Plane, tag: &str) {
    let mut with_tag = group(GROUP);
    with_tag.subscriptions[0].filter = Filter::Tags(vec![tag_code(tag)].into());
    plane.broker().policy.put_groups(vec![with_tag]);
}

#[test]
fn a_pull_gets_what_is_there_and_where_to_go_on() {
    let plane = Plane::start();
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut client = plane.connect_with(encoding);
        for code in [PULL_MESSAGE, LITE_PULL_MESSAGE] {
            let begin = plane.store.max_offset(TOPIC, 0);
            client.put("one");
            client.put("two");
            let answer = client.ask(code, &pull_fields(begin), b"");
            assert_eq!((answer.code, answer.remark.as_str()), (response_code::SUCCESS, ""));
            assert_eq!(answer.bodies(), ["one", "two"]);
            assert_eq!(answer.number("nextBeginOffset"), begin + 2);
            assert_eq!((answer.number("minOffset"), answer.number("maxOffset")), (0, begin + 2));
            assert_eq!(answer.number("suggestWhichBrokerId"), 0);
        }
    }
    assert_eq!(plane.counts().messages_out, 8);
}

#[test]
fn a_pull_gets_no_more_than_it_asks_for_or_the_broker_allows() {
    let plane = Plane::with(|setup| setup.broker.pull.messages_max = 3);
    let mut client = plane.connect();
    for number in 0..5 {
        client.put(&format!("{number}{}", "x".repeat(1_000)));
    }
    let mut count = |changes: &[(&'static str, &str)]| {
        let answer = client.ask(PULL_MESSAGE, &but(pull_fields(0), changes), b"");
        assert_eq!(answer.number("nextBeginOffset"), answer.bodies().len() as i64);
        answer.bodies().len()
    };
    assert_eq!(count(&[("maxMsgNums", "2")]), 2);
    assert_eq!(count(&[("maxMsgNums", "0")]), 1, "a pull for 0 messages gets one");
    assert_eq!(count(&[]), 3, "pull_messages_max");
    assert_eq!(count(&[("maxMsgBytes", "2600")]), 2);
    assert_eq!(count(&[("maxMsgBytes", "1")]), 1, "the first message is returned whatever its size");
}

#[test]
fn a_pull_that_names_no_size_gets_the_default() {
    let plane = Plane::with(|setup| setup.broker.pull.bytes_default = 2_600);
    let mut client = plane.connect();
    for _ in 0..5 {
        client.put(&"x".repeat(1_000));
    }
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies().len(), 2);
    let more = but(pull_fields(0), &[("maxMsgBytes", "1000000")]);
    assert_eq!(client.ask(PULL_MESSAGE, &more, b"").bodies().len(), 5);
}

#[test]
fn a_pull_that_finds_nothing_and_does_not_wait_is_told_so() {
    let plane = Plane::start();
    let mut client = plane.connect();
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").code, response_code::PULL_NOT_FOUND);
    client.put("one");
    let answer = client.ask(PULL_MESSAGE, &pull_fields(1), b"");
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, 1));
}

#[test]
fn a_pull_outside_its_queue_is_sent_to_where_the_queue_is() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let mut moved = |queue_offset| {
        // The pull does not wait, because no message will ever be stored at that offset.
        let answer = client.ask(PULL_MESSAGE, &held_fields(queue_offset, 60_000), b"");
        assert_eq!(answer.code, response_code::PULL_OFFSET_MOVED);
        answer.number("nextBeginOffset")
    };
    assert_eq!(moved(7), 0);
    plane.connect().put("one");
    assert_eq!(moved(7), 1);
    assert_eq!(moved(-3), 0);
}

#[test]
fn a_held_pull_is_woken_by_a_message_of_its_queue_alone() {
    let plane = Plane::start();
    let (mut reader, mut sender) = (plane.connect(), plane.connect());
    let opaque = reader.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
    reader.expect_silence();
    assert_eq!(plane.counts().held, 1);
    sender.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("e", "1")]), b"another queue's");
    reader.expect_silence();
    sender.put("wanted");
    let answer = reader.answer();
    assert_eq!((answer.opaque, answer.code), (opaque, response_code::SUCCESS));
    assert_eq!(answer.bodies(), ["wanted"]);
}

#[test]
fn a_held_pull_whose_time_is_over_is_answered() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let answer = client.ask(PULL_MESSAGE, &held_fields(0, 1), b"");
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, 0));
}

#[test]
fn a_pull_is_held_no_longer_than_the_broker_allows() {
    let plane = Plane::with(|setup| setup.broker.pull.hold_ms_max = 1);
    let mut client = plane.connect();
    let answer = client.ask(PULL_MESSAGE, &held_fields(0, 3_600_000), b"");
    assert_eq!(answer.code, response_code::PULL_NOT_FOUND);
}

#[test]
fn without_long_polling_a_pull_waits_as_long_as_the_broker_says() {
    let plane = Plane::with(|setup| {
        (setup.broker.pull.long_polling, setup.broker.pull.short_polling_ms) = (false, 1)
    });
    let mut client = plane.connect();
    let answer = client.ask(PULL_MESSAGE, &held_fields(0, 3_600_000), b"");
    assert_eq!(answer.code, response_code::PULL_NOT_FOUND);
}

#[test]
fn a_held_pull_goes_on_behind_messages_that_its_tags_do_not_want() {
    let plane = Plane::start();
    put_group_with_tag(&plane, "b");
    let (mut reader, mut sender) = (plane.connect(), plane.connect());
    put_tagged(&mut sender, "a", "unwanted");
    let answer = reader.ask(PULL_MESSAGE, &pull_fields(0), b"");
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_RETRY_IMMEDIATELY, 1));
    reader.send(PULL_MESSAGE, &held_fields(1, 60_000), b"");
    reader.expect_silence();
    put_tagged(&mut sender, "a", "unwanted too");
    reader.expect_silence();
    put_tagged(&mut sender, "b", "wanted");
    let answer = reader.answer();
    assert_eq!((answer.bodies(), answer.number("nextBeginOffset")), (vec!["wanted".to_owned()], 3));
}

#[test]
fn pulls_that_one_large_message_wakes_do_not_all_read_it_at_once() {
    let plane = Plane::with(|setup| {
        setup.broker.pull.hold_max = 400;
        setup.broker.message_size_bytes_max = 512 * 1024;
        setup.store.message_size_bytes_max = 512 * 1024;
    });
    let (mut reader, mut sender) = (plane.connect(), plane.connect());
    let mut bytes = Vec::new();
    for _ in 0..100 {
        reader.frame(&mut bytes, PULL_MESSAGE, 0, &held_fields(0, 60_000), b"");
    }
    reader.write(&bytes);
    reader.expect_silence();
    sender.put(&"x".repeat(500_000));
    let answers: Vec<Answer> = (0..100).map(|_| reader.answer()).collect();
    let (found, others): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.code == response_code::SUCCESS);
    assert!((1..80).contains(&found.len()), "{} of them read 32 MiB together", found.len());
    for other in others {
        assert_eq!((other.code, other.number("nextBeginOffset")), (response_code::PULL_RETRY_IMMEDIATELY, 0));
    }
    assert_eq!(reader.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies().len(), 1, "who asks again gets it");
}

#[test]
fn every_pull_is_answered_although_one_message_wakes_very_many() {
    let plane = Plane::with(|setup| {
        (setup.broker.pull.hold_max, setup.broker.pull.connection_hold_max) = (10_000, 2_000);
    });
    let (mut reader, mut sender) = (plane.connect(), plane.connect());
    for (from, body) in [(0, "first"), (1, "second")] {
        let mut bytes = Vec::new();
        for _ in 0..1_500 {
            reader.frame(&mut bytes, PULL_MESSAGE, 0, &held_fields(from, 60_000), b"");
        }
        reader.write(&bytes);
        reader.expect_silence();
        sender.put(body);
        (0..1_500).for_each(|_| assert_eq!(reader.answer().bodies(), [body]));
    }
    let mut bytes = Vec::new();
    for _ in 0..1_500 {
        reader.frame(&mut bytes, PULL_MESSAGE, 0, &held_fields(2, 1), b"");
    }
    reader.write(&bytes);
    (0..1_500).for_each(|_| assert_eq!(reader.answer().code, response_code::PULL_NOT_FOUND));
}

#[test]
fn held_pulls_are_bounded() {
    let plane = Plane::with(|setup| setup.broker.pull.hold_max = 1);
    let mut client = plane.connect();
    client.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
    client
        .ask(PULL_MESSAGE, &held_fields(0, 60_000), b"")
        .refuses(response_code::SYSTEM_BUSY, "1 pulls are held already");
}

#[test]
fn held_pulls_leave_with_their_connection_and_are_answered_when_the_server_stops() {
    let plane = Plane::with(|setup| setup.broker.pull.hold_max = 1);
    let mut first = plane.connect();
    first.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
    first.expect_silence();
    drop(first);
    eventually("the first connection has ended", || plane.counts().connections == 0);
    let mut second = plane.connect();
    second.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
    second.expect_silence();
    plane.stop();
    assert_eq!(second.answer().code, response_code::PULL_NOT_FOUND);
    assert!(second.try_answer().is_none());
}

#[test]
fn a_pull_that_may_not_be_served_is_refused_with_its_reason() {
    let plane = Plane::with(|setup| {
        let mut write_only = topic("write_only");
        write_only.permission = 2;
        setup.topics.extend([write_only, topic("forbidden"), topic("unsubscribed"), topic("broken")]);
        setup.groups[0].forbidden_topics = vec!["forbidden".to_owned()];
        let mut broken = subscription("broken");
        broken.refusal = Some(Refusal::new(response_code::SUBSCRIPTION_PARSE_FAILED, "cannot be parsed"));
        setup.groups[0].subscriptions.push(broken);
        let mut disabled = group("disabled");
        disabled.consume_enabled = false;
        let mut broadcasting = group("broadcasting");
        (broadcasting.broadcasting, broadcasting.broadcast_enabled) = (true, false);
        setup.groups.extend([disabled, broadcasting]);
    });
    let mut client = plane.connect();
    let refused = [
        ("topic", "nowhere", response_code::TOPIC_NOT_EXIST, "topic[nowhere] does not exist"),
        ("topic", "write_only", response_code::NO_PERMISSION, "is not readable"),
        ("topic", "forbidden", response_code::NO_PERMISSION, "is forbidden to consume"),
        ("topic", "unsubscribed", response_code::SUBSCRIPTION_NOT_EXIST, "has no subscription"),
        ("topic", "broken", response_code::SUBSCRIPTION_PARSE_FAILED, "cannot be parsed"),
        ("consumerGroup", "disabled", response_code::NO_PERMISSION, "is not allowed to consume"),
        ("consumerGroup", "broadcasting", response_code::NO_PERMISSION, "broadcast mode"),
        ("queueId", "4", response_code::INVALID_PARAMETER, "which has 4 queues to read"),
        ("queueId", "-1", response_code::INVALID_PARAMETER, "queue -1 is outside"),
        ("queueOffset", "first", response_code::SYSTEM_ERROR, "queueOffset"),
        ("topic", "", response_code::SYSTEM_ERROR, "topic"),
    ];
    for (field, value, code, remark_part) in refused {
        let answer = client.ask(PULL_MESSAGE, &but(pull_fields(0), &[(field, value)]), b"");
        answer.refuses(code, remark_part);
    }
    plane.broker().policy.set_permission(2);
    let answer = client.ask(PULL_MESSAGE, &pull_fields(0), b"");
    answer.refuses(response_code::NO_PERMISSION, "broker[b1] does not serve messages");
}

#[test]
fn a_pull_of_an_unknown_group_crosses_and_is_refused_when_it_comes_back() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send(PULL_MESSAGE, &but(pull_fields(0), &[("consumerGroup", "strangers")]), b"");
    plane.listener.shared.handle_again(&plane.crossed()).unwrap();
    client.answer().refuses(response_code::SUBSCRIPTION_GROUP_NOT_EXIST, "group[strangers] does not exist");
}

#[test]
fn a_pull_can_commit_an_offset_on_its_way() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for _ in 0..9 {
        client.put("m");
    }
    let flag = COMMIT.to_string();
    let fields = but(pull_fields(0), &[("sysFlag", &flag), ("commitOffset", "7")]);
    client.ask(PULL_MESSAGE, &fields, b"");
    let query = but(queue_fields(), &[("consumerGroup", GROUP)]);
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &query, b"").number("offset"), 7);
    client.ask(PULL_MESSAGE, &but(pull_fields(0), &[("commitOffset", "9")]), b"");
    assert_eq!(
        plane.broker().offsets.get(GROUP, TOPIC, 0),
        Some(7),
        "the offset is committed only if the flag is set"
    );
    let beyond = but(pull_fields(0), &[("sysFlag", &flag), ("commitOffset", "10")]);
    assert_eq!(
        client.ask(PULL_MESSAGE, &beyond, b"").code,
        response_code::SUCCESS,
        "it is served all the same"
    );
    assert_eq!(plane.broker().offsets.get(GROUP, TOPIC, 0), Some(7), "nobody has read past the end");
}

#[test]
fn a_pull_may_bring_its_own_tags() {
    let plane = Plane::start();
    let (mut reader, flag) = (plane.connect(), SUBSCRIPTION.to_string());
    put_tagged(&mut reader, "a", "one");
    put_tagged(&mut reader, "b", "two");
    let mut bodies = |subscription: &str| {
        let fields = but(pull_fields(0), &[("sysFlag", &flag), ("subscription", subscription)]);
        reader.ask(PULL_MESSAGE, &fields, b"").bodies()
    };
    assert_eq!(bodies("a"), ["one"]);
    assert_eq!(bodies(" b || c "), ["two"]);
    assert_eq!(bodies("*"), ["one", "two"]);
    assert_eq!(bodies(" || "), ["one", "two"]);
}

#[test]
fn an_expression_that_is_not_known_crosses_until_python_has_compiled_it() {
    let plane = Plane::start();
    let mut client = plane.connect();
    put_tagged(&mut client, "a", "one");
    let flag = SUBSCRIPTION.to_string();
    let fields = but(
        pull_fields(0),
        &[("sysFlag", &flag), ("subscription", "x IS NULL"), ("expressionType", "SQL92")],
    );
    client.send(PULL_MESSAGE, &fields, b"");
    let crossed = plane.crossed();
    let program = Program::build(vec![Operation::Null, Operation::IsNull]).unwrap();
    plane.broker().pulls.expressions.put("x IS NULL", Filter::Expression(Arc::new(program)));
    plane.listener.shared.handle_again(&crossed).unwrap();
    assert_eq!(client.answer().bodies(), ["one"]);
    assert_eq!(client.ask(PULL_MESSAGE, &fields, b"").bodies(), ["one"], "known from now on");
    client.send(PULL_MESSAGE, &but(fields, &[("subscription", "y IS NULL")]), b"");
    plane.listener.shared.handle_again(&plane.crossed()).unwrap();
    client.answer().refuses(response_code::SUBSCRIPTION_PARSE_FAILED, "try again");
}

#[test]
fn a_pull_that_is_newer_than_its_heartbeat_gets_everything_or_waits_for_python() {
    let plane = Plane::start();
    put_group_with_tag(&plane, "b");
    let mut client = plane.connect();
    put_tagged(&mut client, "a", "one");
    let newer = but(pull_fields(0), &[("subVersion", "2")]);
    assert_eq!(
        client.ask(PULL_MESSAGE, &newer, b"").bodies(),
        ["one"],
        "clients compare the tags themselves"
    );
    client.send(PULL_MESSAGE, &but(newer, &[("expressionType", "SQL92")]), b"");
    plane.listener.shared.handle_again(&plane.crossed()).unwrap();
    client.answer().refuses(response_code::SUBSCRIPTION_NOT_LATEST, "newer than its last heartbeat");
}

#[test]
fn a_reset_sends_running_consumers_elsewhere_until_they_follow() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for body in ["one", "two", "three"] {
        client.put(body);
    }
    client.send(PULL_MESSAGE, &held_fields(3, 60_000), b"");
    client.expect_silence();
    plane.broker().pulls.reset_offset(GROUP, TOPIC, 0, 1);
    let answer = client.answer();
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_OFFSET_MOVED, 1));
    let answer = client.ask(PULL_MESSAGE, &pull_fields(1), b"");
    assert_eq!(answer.bodies(), ["two", "three"]);
    plane.broker().pulls.reset_offset(GROUP, TOPIC, 0, 0);
    let answer = client.ask(PULL_MESSAGE, &pull_fields(3), b"");
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_OFFSET_MOVED, 0));
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(3), b"").code, response_code::PULL_OFFSET_MOVED);
    let fixed = but(pull_fields(1), &[("sysFlag", "65540"), ("subscription", "*")]);
    assert_eq!(client.ask(PULL_MESSAGE, &fixed, b"").bodies(), ["two", "three"], "a fixed range is served");
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["one", "two", "three"]);
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(3), b"").code, response_code::PULL_NOT_FOUND);
}

#[test]
fn a_function_decides_which_messages_a_pull_gets() {
    let plane = Plane::start();
    let call = Call { function: "large".to_owned(), text: "large(3)".to_owned() };
    let mut filtered = group(GROUP);
    filtered.subscriptions[0].filter = Filter::Function(Arc::new(call));
    plane.broker().policy.put_groups(vec![filtered]);
    let (mut reader, mut sender) = (plane.connect(), plane.connect());
    for body in ["one", "two", "three", "four"] {
        sender.put(body);
    }
    reader.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
    eventually("the pull stands in line", || plane.broker().pulls.function_lines.wanted() == ["large"]);
    let batch = plane.broker().pulls.take_batch("large", 3, 1 << 20).unwrap();
    assert_eq!((batch.records.len(), batch.call(), batch.more), (3, "large(3)", false));
    plane.broker().pulls.answer_batch(batch, &[0, 0, 1]);
    let answer = reader.answer();
    assert_eq!((answer.bodies(), answer.number("nextBeginOffset")), (vec!["three".to_owned()], 3));
    // After a batch without a wanted message, the pull waits for later ones.
    reader.send(PULL_MESSAGE, &held_fields(3, 60_000), b"");
    eventually("the pull stands in line again", || plane.broker().pulls.function_lines.wanted() == ["large"]);
    let batch = plane.broker().pulls.take_batch("large", 3, 1 << 20).unwrap();
    plane.broker().pulls.answer_batch(batch, &[0]);
    reader.expect_silence();
    sender.put("five");
    eventually("the pull stands in line for the new one", || {
        plane.broker().pulls.function_lines.wanted() == ["large"]
    });
    let batch = plane.broker().pulls.take_batch("large", 3, 1 << 20).unwrap();
    batch.refuse(response_code::SUBSCRIPTION_PARSE_FAILED, "the function failed");
    reader.answer().refuses(response_code::SUBSCRIPTION_PARSE_FAILED, "the function failed");
}

#[test]
fn a_member_gets_messages_by_its_own_subscription() {
    let plane = Plane::start();
    put_group_with_tag(&plane, "a");
    let mut client = plane.connect();
    put_tagged(&mut client, "a", "one");
    put_tagged(&mut client, "b", "two");
    let policy = &plane.broker().policy;
    let mut own = subscription(TOPIC);
    own.filter = Filter::Tags(vec![tag_code("b")].into());
    let connections = 0..100;
    for connection in connections.clone() {
        policy.put_member(GROUP, connection, Member::new(false, vec![own.clone()]));
    }
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["two"]);
    put_group_with_tag(&plane, "none");
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["two"], "the group was put again");
    for connection in connections {
        policy.remove_member(GROUP, connection);
    }
    put_group_with_tag(&plane, "a");
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["one"]);
}

/// A group that reads messages whose color is red, after many searches in another property.
fn put_group_with_costly_filter(plane: &Plane) {
    let mut operations =
        vec![Operation::Property("color".into()), Operation::Text("red".into()), Operation::Equal];
    for _ in 0..50 {
        operations.extend([
            Operation::Property("big".into()),
            Operation::Contains("needle".into()),
            Operation::Or,
        ]);
    }
    let mut costly = group(GROUP);
    costly.subscriptions[0].filter = Filter::Expression(Arc::new(Program::build(operations).unwrap()));
    plane.broker().policy.put_groups(vec![costly]);
}

fn put_colored(client: &mut Client, color: &str, body: &str) {
    let colored = properties(&[("color", color), ("big", &"x".repeat(3_000))]);
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(&colored), body.as_bytes());
    assert_eq!(answer.code, response_code::SUCCESS);
}

#[test]
fn a_costly_filter_is_run_in_steps_of_many_pulls() {
    // Enough for four messages.
    let plane = Plane::with(|setup| setup.broker.pull.examined_bytes_max = 700_000);
    put_group_with_costly_filter(&plane);
    let mut client = plane.connect();
    for number in 0..40 {
        put_colored(&mut client, if number % 10 == 9 { "red" } else { "blue" }, &number.to_string());
    }
    let (mut found, mut codes, mut next) = (Vec::new(), Vec::new(), 0);
    while next < 40 {
        let answer = client.ask(PULL_MESSAGE, &pull_fields(next), b"");
        let reached = answer.number("nextBeginOffset");
        assert!(reached > next && reached <= next + 4, "from {next} to {reached}");
        next = reached;
        codes.push(answer.code);
        found.extend(answer.bodies());
    }
    assert_eq!(found, ["9", "19", "29", "39"]);
    let retries = codes.iter().filter(|code| **code == response_code::PULL_RETRY_IMMEDIATELY).count();
    assert_eq!((codes.len(), retries), (10, 6), "{codes:?}");
}

#[test]
fn between_costly_pulls_of_one_connection_others_have_their_turn() {
    let change = |setup: &mut Setup| setup.broker.pull.examined_bytes_max = 1 << 30;
    let plane = Plane::with(change);
    let colored = properties(&[("color", "blue"), ("big", &"x".repeat(3_000))]);
    let body = batch(&[("m", colored.as_str()); 16]);
    for _ in 0..10 {
        let answer = plane.connect().ask(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body);
        assert_eq!(answer.code, response_code::SUCCESS);
    }
    // Then the entries of the queue are read from its file, where the first pull can be made to hang.
    let plane = plane.restart(change);
    put_group_with_costly_filter(&plane);
    let (mut greedy, mut healthy) = (plane.connect(), plane.connect());
    for client in [&mut greedy, &mut healthy] {
        client.put("both connections are known");
    }
    let elsewhere = but(send_fields(""), &[("e", "1")]);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        greedy.frame(&mut bytes, PULL_MESSAGE, 0, &pull_fields(0), b"");
        greedy.frame(&mut bytes, SEND_MESSAGE_V2, 0, &elsewhere, b"greedy");
    }
    plane.disk.stall(DiskCall::Read, "consumequeue/orders/0");
    greedy.pour(&bytes);
    eventually("the first pull hangs", || plane.disk.hanging() > 0);
    healthy.send(SEND_MESSAGE_V2, &elsewhere, b"healthy");
    plane.disk.heal();
    // How many messages of the greedy connection came before says how many of its pulls did.
    let before = healthy.answer().number("queueOffset");
    assert!(before < 5, "{before} pulls came first");
}

#[test]
fn pulls_that_one_message_wakes_share_the_work() {
    let plane = Plane::with(|setup| setup.broker.pull.examined_bytes_max = 350_000);
    put_group_with_costly_filter(&plane);
    let mut readers: Vec<Client> = (0..5).map(|_| plane.connect()).collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.send(PULL_MESSAGE, &held_fields(0, 60_000), b"");
        eventually("the pull is held", || plane.counts().held == number as u64 + 1);
    }
    put_colored(&mut plane.connect(), "red", "one");
    let answers: Vec<Answer> = readers.iter_mut().map(Client::answer).collect();
    let found = answers.iter().filter(|answer| answer.bodies() == ["one"]).count();
    assert_eq!(found, 3, "the third one goes over the limit");
    for answer in answers.iter().filter(|answer| answer.bodies().is_empty()) {
        // Its consumer asks again at once, in its own time.
        assert_eq!(
            (answer.code, answer.number("nextBeginOffset")),
            (response_code::PULL_RETRY_IMMEDIATELY, 0)
        );
    }
}

#[test]
fn a_pull_names_a_limited_number_of_tags() {
    let plane = Plane::with(|setup| setup.broker.pull.tags_max = 20);
    let mut client = plane.connect();
    put_tagged(&mut client, "tag7", "seven");
    let mut pull = |count: usize| {
        let tags: Vec<String> = (0..count).map(|number| format!("tag{number}")).collect();
        let flag = SUBSCRIPTION.to_string();
        let fields = but(pull_fields(0), &[("sysFlag", &flag), ("subscription", &tags.join("||"))]);
        client.ask(PULL_MESSAGE, &fields, b"")
    };
    assert_eq!(pull(20).bodies(), ["seven"]);
    pull(21).refuses(response_code::SUBSCRIPTION_PARSE_FAILED, "more than 20 tags");
}
