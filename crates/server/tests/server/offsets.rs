//! Committed offsets (14, 15), the ends of a queue (30, 31) and search by time (29).

use crate::support::request_code::{
    GET_MAX_OFFSET, GET_MIN_OFFSET, QUERY_CONSUMER_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;

fn group_fields() -> Fields<'static> {
    but(queue_fields(), &[("consumerGroup", GROUP)])
}

#[test]
fn a_committed_offset_is_read_back() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let commit = but(group_fields(), &[("commitOffset", "5")]);
    let answer = client.ask(UPDATE_CONSUMER_OFFSET, &commit, b"");
    assert_eq!((answer.code, answer.fields.len()), (response_code::SUCCESS, 0));
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 5);
    let oneway = but(group_fields(), &[("commitOffset", "6")]);
    client.send_oneway(UPDATE_CONSUMER_OFFSET, &oneway, b"");
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 6);
    let other = but(group_fields(), &[("queueId", "1")]);
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &other, b"").code, response_code::QUERY_NOT_FOUND);
}

#[test]
fn a_commit_that_makes_no_sense_is_refused() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let good = || but(group_fields(), &[("commitOffset", "5")]);
    let refused = [
        (but(good(), &[("topic", "nowhere")]), response_code::TOPIC_NOT_EXIST, "topic[nowhere]"),
        (
            but(good(), &[("consumerGroup", "nobody")]),
            response_code::SUBSCRIPTION_GROUP_NOT_EXIST,
            "group[nobody]",
        ),
        (but(good(), &[("commitOffset", "-1")]), response_code::INVALID_PARAMETER, "not negative"),
        (but(good(), &[("queueId", "-1")]), response_code::INVALID_PARAMETER, "not negative"),
        (group_fields(), response_code::INVALID_PARAMETER, "must be given"),
        (but(good(), &[("queueId", "x")]), response_code::SYSTEM_ERROR, "queueId"),
    ];
    for (fields, code, remark_part) in refused {
        client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"").refuses(code, remark_part);
    }
    assert!(plane.broker().offsets.snapshot().is_empty());
}

#[test]
fn a_group_without_an_offset_begins_at_the_start_of_a_young_queue() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let answer = client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"");
    answer.refuses(response_code::QUERY_NOT_FOUND, "has committed no offset");
    client.put("one");
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 0);
    let exact = but(group_fields(), &[("setZeroIfNotFound", "false")]);
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &exact, b"").code, response_code::QUERY_NOT_FOUND);
}

#[test]
fn the_ends_of_a_queue_are_told() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let ends = |client: &mut Client| {
        let mut end = |code| client.ask(code, &queue_fields(), b"").number("offset");
        (end(GET_MIN_OFFSET), end(GET_MAX_OFFSET))
    };
    assert_eq!(ends(&mut client), (0, 0));
    client.put("one");
    client.put("two");
    assert_eq!(ends(&mut client), (0, 2));
    let missing = vec![("topic", TOPIC.to_owned())];
    client.ask(GET_MAX_OFFSET, &missing, b"").refuses(response_code::SYSTEM_ERROR, "queueId");
}

#[test]
fn an_offset_is_found_by_the_time_at_which_its_message_was_stored() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for _ in 0..3 {
        client.put("m");
        plane.clock.advance_ms(1_000);
    }
    let mut found = |after_ms: i64, boundary: &str| {
        let time = (START_MS + after_ms).to_string();
        let fields = but(queue_fields(), &[("timestamp", &time), ("boundaryType", boundary)]);
        client.ask(SEARCH_OFFSET_BY_TIMESTAMP, &fields, b"").number("offset")
    };
    assert_eq!((found(-5, "LOWER"), found(0, "LOWER"), found(1, "LOWER")), (0, 0, 1));
    assert_eq!((found(1_000, "LOWER"), found(1_999, "UPPER"), found(1_000, "upper")), (1, 1, 1));
    assert_eq!(found(9_000, "LOWER"), 3);
}
