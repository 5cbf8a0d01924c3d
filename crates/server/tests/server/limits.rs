//! Rate limits of topics and groups.

use crate::support::request_code::{PULL_MESSAGE, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2};
use crate::support::*;

/// Ten messages a second: the bucket holds one, and each further one costs 100 ms.
fn limited_sends() -> Plane {
    Plane::with(|setup| setup.topics[0].send_limit = messages_per_second(10))
}

fn limited_pulls() -> Plane {
    Plane::with(|setup| setup.groups[0].consume_limit = messages_per_second(10))
}

#[test]
fn a_sender_over_the_limit_is_answered_when_its_message_is_paid_for() {
    let plane = limited_sends();
    let mut client = plane.connect();
    client.put("at once");
    let slowed = client.send(SEND_MESSAGE_V2, &send_fields(""), b"slowed");
    client.expect_silence();
    eventually("the message is stored at once", || plane.bodies(TOPIC, 0) == ["at once", "slowed"]);
    assert_eq!((plane.counts().sends_slowed, plane.figures().limits_waiting), (1, 1));
    plane.clock.advance_ms(99);
    client.expect_silence();
    plane.clock.advance_ms(1);
    let answer = client.answer();
    assert_eq!((answer.opaque, answer.code), (slowed, response_code::SUCCESS));
    assert_eq!(plane.figures().limits_waiting, 0);
}

#[test]
fn a_sender_far_over_the_limit_is_refused_after_a_while() {
    let plane = limited_sends();
    let mut client = plane.connect();
    let body = batch(&[("m", ""); 20]);
    let answer = client.ask(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body);
    assert_eq!(answer.code, response_code::SUCCESS, "a full bucket lets one request of any size through");
    let refused = client.send(SEND_MESSAGE_V2, &send_fields(""), b"refused");
    client.expect_silence();
    assert_eq!(plane.counts().sends_over_limit, 1);
    plane.clock.advance_ms(500);
    let answer = client.answer();
    assert_eq!(answer.opaque, refused, "the refusal is kept back for send_refusal_hold_ms");
    answer.refuses(response_code::SYSTEM_BUSY, "[FLOW] topic[orders] takes at most 10 messages a second");
    plane.clock.advance_ms(1_500);
    client.put("again");
}

#[test]
fn a_oneway_over_the_limit_is_dropped_without_a_word() {
    let plane = limited_sends();
    let mut client = plane.connect();
    let body = batch(&[("m", ""); 20]);
    client.send_oneway(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body);
    client.send_oneway(SEND_MESSAGE_V2, &send_fields(""), b"dropped");
    client.expect_silence();
    assert_eq!(plane.counts().sends_over_limit, 1);
    eventually("the batch is stored", || plane.bodies(TOPIC, 0).len() == 20);
}

#[test]
fn where_no_more_answers_may_wait_the_refusal_comes_at_once() {
    let plane = Plane::with(|setup| {
        setup.topics[0].send_limit = messages_per_second(10);
        setup.broker.limits.send_hold_max = 1;
    });
    let mut client = plane.connect();
    client.put("at once");
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"waits");
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"has no room");
    client.answer().refuses(response_code::SYSTEM_BUSY, "[FLOW]");
}

#[test]
fn answers_that_wait_for_a_limit_count_with_their_bytes() {
    let plane = Plane::with(|setup| {
        setup.topics[0].send_limit = messages_per_second(1_000);
        setup.broker.limits.send_hold_ms_max = 1_000_000;
        setup.server.connection_memory_bytes_max = 1 << 20;
    });
    let (mut client, mut other) = (plane.connect(), plane.connect());
    let (body, fields) = (batch(&[("m", ""); 1_000]), but(send_fields(""), &[("m", "true")]));
    assert_eq!(client.ask(SEND_BATCH_MESSAGE, &fields, &body).code, response_code::SUCCESS);
    for _ in 0..95 {
        client.send(SEND_BATCH_MESSAGE, &fields, &body);
    }
    client.answer().refuses(response_code::SYSTEM_BUSY, "(connection_memory_bytes_max)");
    let waiting = plane.figures().limits_waiting;
    assert!((10..90).contains(&waiting), "{waiting} answers with 1,000 ids each wait");
    other.send(SEND_MESSAGE_V2, &send_fields(""), b"it has room");
    other.expect_silence();
    drop((client, other));
    eventually("nothing is kept for them", || {
        // Requests that are still handled begin to wait after the clock was moved.
        plane.clock.advance_ms(1_000_000);
        plane.counts().memory_bytes == 0
    });
}

#[test]
fn a_group_reads_no_faster_than_its_limit() {
    let plane = limited_pulls();
    let mut client = plane.connect();
    for number in 0..5 {
        client.put(&number.to_string());
    }
    assert_eq!(
        client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(),
        ["0"],
        "the bucket holds one message"
    );
    let held = but(pull_fields(1), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")]);
    client.send(PULL_MESSAGE, &held, b"");
    client.expect_silence();
    assert_eq!(plane.counts().pulls_paced, 1);
    plane.clock.advance_ms(100);
    assert_eq!(client.answer().bodies(), ["1"]);
}

#[test]
fn a_pull_whose_time_ends_before_the_limit_has_room_asks_again() {
    let plane = limited_pulls();
    let mut client = plane.connect();
    client.put("0");
    client.put("1");
    client.ask(PULL_MESSAGE, &pull_fields(0), b"");
    let held = but(pull_fields(1), &[("sysFlag", "2"), ("suspendTimeoutMillis", "1")]);
    let answer = client.ask(PULL_MESSAGE, &held, b"");
    assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_RETRY_IMMEDIATELY, 1));
    // A pull of an empty queue is answered at once: it delivers nothing that would count.
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(2), b"").code, response_code::PULL_NOT_FOUND);
}

#[test]
fn a_limit_that_stays_the_same_counts_on_when_its_topic_changes() {
    let plane = limited_sends();
    let mut client = plane.connect();
    client.put("at once");
    let mut same = topic(TOPIC);
    (same.send_limit, same.write_queues) = (messages_per_second(10), 8);
    plane.broker().policy.put_topics(vec![same]);
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"slowed");
    client.expect_silence();
    plane.broker().policy.put_topics(vec![topic(TOPIC)]);
    client.put("no limit any more");
}
