//! Committed offsets (14, 15), the ends of a queue (30, 31) and search by time (29).

use crate::support::request_code::{
    GET_MAX_OFFSET, GET_MIN_OFFSET, PULL_MESSAGE, QUERY_CONSUMER_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;
use metaq_server::{Group, Topic};

fn group_fields() -> Fields<'static> {
    but(queue_fields(), &[("consumerGroup", GROUP)])
}

#[test]
fn a_committed_offset_is_read_back() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for _ in 0..6 {
        client.put("m");
    }
    let commit = but(group_fields(), &[("commitOffset", "5")]);
    let answer = client.ask(UPDATE_CONSUMER_OFFSET, &commit, b"");
    assert_eq!((answer.code, answer.fields.len()), (response_code::SUCCESS, 0));
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 5);
    let oneway = but(group_fields(), &[("commitOffset", "6")]);
    client.send_oneway(UPDATE_CONSUMER_OFFSET, &oneway, b"");
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 6);
    let other = but(group_fields(), &[("queueId", "1"), ("setZeroIfNotFound", "false")]);
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
        (but(good(), &[("queueId", "4")]), response_code::INVALID_PARAMETER, "which has 4 queues"),
        (but(good(), &[("commitOffset", "1")]), response_code::INVALID_PARAMETER, "beyond the end"),
        (
            but(good(), &[("commitOffset", "9223372036854775807")]),
            response_code::INVALID_PARAMETER,
            "beyond the end of queue 0 of topic[orders], which is 0",
        ),
    ];
    for (fields, code, remark_part) in refused {
        client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"").refuses(code, remark_part);
    }
    assert!(plane.broker().offsets.snapshot().is_empty());
    let start = but(good(), &[("commitOffset", "0"), ("queueId", "3")]);
    assert_eq!(client.ask(UPDATE_CONSUMER_OFFSET, &start, b"").code, response_code::SUCCESS);
}

#[test]
fn queue_ids_that_do_not_exist_take_no_memory() {
    let plane = Plane::start();
    let mut client = plane.connect();
    for queue_id in 4..2_000 {
        let fields = but(group_fields(), &[("queueId", &queue_id.to_string()), ("commitOffset", "0")]);
        client.send_oneway(UPDATE_CONSUMER_OFFSET, &fields, b"");
    }
    client.expect_silence();
    assert_eq!(plane.broker().offsets.snapshot(), []);
}

#[test]
fn the_brokers_own_groups_and_topics_are_closed_to_clients() {
    let plane = Plane::with(|setup| {
        setup.topics.push(Topic { client_readable: false, ..topic("half") });
        setup.groups.push(Group { client_usable: false, ..group("own") });
    });
    let mut client = plane.connect();
    client.put("one");
    let commit = but(group_fields(), &[("commitOffset", "1")]);
    let commits = [but(commit.clone(), &[("consumerGroup", "own")]), but(commit, &[("topic", "half")])];
    for fields in commits {
        client
            .ask(UPDATE_CONSUMER_OFFSET, &fields, b"")
            .refuses(response_code::NO_PERMISSION, "broker's own");
    }
    let pull = but(pull_fields(0), &[("sysFlag", "5"), ("commitOffset", "1"), ("subscription", "*")]);
    for fields in [but(pull.clone(), &[("consumerGroup", "own")]), but(pull, &[("topic", "half")])] {
        client.ask(PULL_MESSAGE, &fields, b"").refuses(response_code::NO_PERMISSION, "broker's own");
    }
    assert_eq!(plane.broker().offsets.snapshot(), []);
}

#[test]
fn offsets_that_another_broker_has_shown_are_accepted() {
    let (master, replica) = (Plane::start(), Plane::replica());
    let mut client = master.connect();
    client.put("one");
    client.put("two");
    let commit = but(group_fields(), &[("commitOffset", "2")]);
    let mut promoted = replica;
    promoted.copy_log(&master);
    let mut client = promoted.connect();
    let taken = client.ask(UPDATE_CONSUMER_OFFSET, &commit, b"");
    taken.refuses(response_code::SERVICE_NOT_AVAILABLE, "may be lost");
    promoted.change_role(false);
    let mut client = promoted.connect();
    assert_eq!(promoted.store.max_offset(TOPIC, 0), 0, "nothing is confirmed yet");
    assert_eq!(
        client.ask(UPDATE_CONSUMER_OFFSET, &commit, b"").code,
        response_code::SUCCESS,
        "on a new master"
    );
    let impossible = but(group_fields(), &[("commitOffset", "1000")]);
    client
        .ask(UPDATE_CONSUMER_OFFSET, &impossible, b"")
        .refuses(response_code::INVALID_PARAMETER, "beyond the end");
    promoted.store.confirm_replicated(promoted.store.end_offset());
    promoted.store.dispatch();
    let beyond = but(group_fields(), &[("commitOffset", "3")]);
    client
        .ask(UPDATE_CONSUMER_OFFSET, &beyond, b"")
        .refuses(response_code::INVALID_PARAMETER, "beyond the end");
}

#[test]
fn a_group_without_an_offset_begins_at_the_start_of_a_young_queue() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let answer = client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"");
    assert_eq!(answer.number("offset"), 0, "a message that arrives now must not be skipped");
    for (field, value) in [("topic", "nowhere"), ("queueId", "4"), ("queueId", "-1")] {
        let answer = client.ask(QUERY_CONSUMER_OFFSET, &but(group_fields(), &[(field, value)]), b"");
        answer.refuses(response_code::QUERY_NOT_FOUND, "has committed no offset");
    }
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
