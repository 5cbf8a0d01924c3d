//! The plane of a replica: it reads its own copy of the log, as far as the master has confirmed it, and appends nothing.

use crate::support::request_code::{
    END_TRANSACTION, GET_MAX_OFFSET, GET_MIN_OFFSET, PULL_MESSAGE, QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2, UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;

fn group_fields() -> Fields<'static> {
    but(queue_fields(), &[("consumerGroup", GROUP)])
}

fn held_pull(queue_offset: i64) -> Fields<'static> {
    but(pull_fields(queue_offset), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")])
}

/// A master with this many messages in its log, and a replica that has copied them and confirmed none.
fn pair(messages: usize) -> (Plane, Plane) {
    let (master, replica) = (Plane::start(), Plane::replica());
    let mut client = master.connect();
    for number in 0..messages {
        client.put(&number.to_string());
    }
    replica.copy_log(&master);
    (master, replica)
}

#[test]
fn a_replica_serves_what_the_master_has_confirmed() {
    let (_master, replica) = pair(3);
    let mut client = replica.connect();
    let mut number = |code| client.ask(code, &queue_fields(), b"").number("offset");
    assert_eq!((number(GET_MIN_OFFSET), number(GET_MAX_OFFSET)), (0, 0));
    let second = replica.store.raw_bytes(0, 1).unwrap().len() as i64;
    replica.store.confirm_replicated(second);
    assert_eq!(number(GET_MAX_OFFSET), 1);
    let time = but(queue_fields(), &[("timestamp", &START_MS.to_string())]);
    assert_eq!(client.ask(SEARCH_OFFSET_BY_TIMESTAMP, &time, b"").number("offset"), 0);
    let found = client.ask(PULL_MESSAGE, &pull_fields(0), b"");
    assert_eq!((found.bodies(), found.number("maxOffset")), (vec!["0".to_owned()], 1));
    client.send(PULL_MESSAGE, &held_pull(1), b"");
    client.expect_silence();
    replica.store.confirm_replicated(replica.store.end_offset());
    assert_eq!(client.answer().bodies(), ["1", "2"]);
}

#[test]
fn a_replica_without_a_master_takes_no_messages_and_keeps_committed_offsets() {
    let (_master, replica) = pair(1);
    replica.store.confirm_replicated(replica.store.end_offset());
    let end = replica.store.end_offset();
    let mut client = replica.connect();
    let batch_fields = but(send_fields(""), &[("m", "true")]);
    for (code, fields) in
        [(SEND_MESSAGE_V2, send_fields("")), (SEND_BATCH_MESSAGE, batch_fields), (END_TRANSACTION, vec![])]
    {
        let answer = client.ask(code, &fields, b"m");
        answer.refuses(response_code::SERVICE_NOT_AVAILABLE, "is a replica and knows no master");
    }
    assert_eq!(replica.store.end_offset(), end);
    let mut commit = |queue_offset: i64| {
        let fields = but(group_fields(), &[("commitOffset", &queue_offset.to_string())]);
        let answer = client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"");
        answer.refuses(response_code::SERVICE_NOT_AVAILABLE, "may be lost");
        client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset")
    };
    assert_eq!((commit(5), commit(4), commit(6)), (5, 5, 6), "it never goes back");
    let offsets = &replica.broker().offsets;
    offsets.assign(GROUP, TOPIC, 0, 2);
    let kept = offsets.take_kept();
    let place = (format!("{TOPIC}@{GROUP}"), [(0, 6)].into());
    assert_eq!(kept, [place], "Python finds it there to pass it on, whatever the next master has");
    assert!(offsets.take_kept().is_empty());
    offsets.advance(GROUP, TOPIC, 0, 6);
    let with_pull = but(pull_fields(0), &[("sysFlag", "1"), ("commitOffset", "3")]);
    assert_eq!(client.ask(PULL_MESSAGE, &with_pull, b"").code, response_code::SUCCESS);
    assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 6);
}

#[test]
fn a_replica_that_stands_in_for_its_master_answers_commits_with_success() {
    let replica = Plane::with(|setup| {
        setup.is_replica = true;
        setup.broker.stands_in = true;
        setup.broker.offsets.places_max = 1;
    });
    let mut client = replica.connect();
    let fields = but(group_fields(), &[("commitOffset", "5")]);
    assert_eq!(client.ask(UPDATE_CONSUMER_OFFSET, &fields, b"").code, response_code::SUCCESS);
    let other = but(fields, &[("queueId", "1")]);
    client.ask(UPDATE_CONSUMER_OFFSET, &other, b"").refuses(response_code::SYSTEM_BUSY, "as many");
}

#[test]
fn a_master_answers_a_commit_with_success_only_while_its_replicas_follow() {
    let master = Plane::start();
    let mut client = master.connect();
    client.put("m");
    let mut commit = || {
        let answer = client.ask(UPDATE_CONSUMER_OFFSET, &but(group_fields(), &[("commitOffset", "1")]), b"");
        assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group_fields(), b"").number("offset"), 1);
        answer
    };
    let hour_ms = 3_600_000;
    for followed_until in [None, Some(metaq_store::boot_time_ms() + hour_ms)] {
        master.store.note_followed(followed_until);
        assert_eq!(commit().code, response_code::SUCCESS);
    }
    master.store.note_followed(Some(metaq_store::boot_time_ms()));
    commit().refuses(response_code::SERVICE_NOT_AVAILABLE, "another node may be master");
    master.store.note_followed(None);
    master.store.fence("[REPLICAS] too few");
    commit().refuses(response_code::SERVICE_NOT_AVAILABLE, "too few");
}

#[test]
fn a_replica_delivers_nothing_that_is_due() {
    let (master, replica) = (Plane::start(), Plane::replica());
    let mut client = master.connect();
    for delay in [("DELAY", "1"), ("TIMER_DELAY_SEC", "1")] {
        let fields = send_fields(&properties(&[delay]));
        assert_eq!(client.ask(SEND_MESSAGE_V2, &fields, b"late").code, response_code::SUCCESS);
    }
    replica.copy_log(&master);
    let end = replica.store.end_offset();
    replica.store.confirm_replicated(end);
    replica.advance_ms(60_000);
    master.advance_ms(60_000);
    assert_eq!(master.bodies(TOPIC, 0), ["late", "late"]);
    assert_eq!(replica.store.end_offset(), end);
    replica.copy_log(&master);
    replica.store.confirm_replicated(replica.store.end_offset());
    assert_eq!(replica.bodies(TOPIC, 0), ["late", "late"], "the master's deliveries come with its log");
}

#[test]
fn a_pull_beyond_what_a_replica_shows_waits_for_it() {
    let (_master, replica) = pair(3);
    let mut client = replica.connect();
    for asked in [1, 3, 9] {
        let answer = client.ask(PULL_MESSAGE, &pull_fields(asked), b"");
        assert_eq!((answer.code, answer.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, asked));
    }
    client.send(PULL_MESSAGE, &held_pull(2), b"");
    client.expect_silence();
    replica.store.confirm_replicated(replica.store.raw_bytes(0, 1).unwrap().len() as i64);
    client.expect_silence();
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(2), b"").number("nextBeginOffset"), 2);
    replica.store.confirm_replicated(replica.store.end_offset());
    assert_eq!(client.answer().bodies(), ["2"]);
    let beyond = client.ask(PULL_MESSAGE, &pull_fields(9), b"");
    assert_eq!((beyond.code, beyond.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, 9));
}

#[test]
fn a_new_master_corrects_no_offset_before_the_log_it_began_with_is_confirmed() {
    let (_master, mut promoted) = pair(3);
    promoted.change_role(false);
    let mut client = promoted.connect();
    let early = client.ask(PULL_MESSAGE, &pull_fields(3), b"");
    assert_eq!((early.code, early.number("nextBeginOffset")), (response_code::PULL_NOT_FOUND, 3));
    client.send(PULL_MESSAGE, &held_pull(2), b"");
    client.expect_silence();
    promoted.store.confirm_replicated(promoted.store.end_offset());
    assert_eq!(client.answer().bodies(), ["2"]);
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(3), b"").code, response_code::PULL_NOT_FOUND);
    let beyond = client.ask(PULL_MESSAGE, &pull_fields(4), b"");
    assert_eq!((beyond.code, beyond.number("nextBeginOffset")), (response_code::PULL_OFFSET_MOVED, 3));
}

#[test]
fn one_listener_plays_roles_one_after_the_other() {
    let mut plane = Plane::start();
    let mut client = plane.connect();
    client.put("first");
    plane.change_role(true);
    let refused = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"refused");
    refused.refuses(response_code::SERVICE_NOT_AVAILABLE, "is a replica");
    assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["first"]);
    plane.broker_plane.stop(true);
    for code in [SEND_MESSAGE_V2, PULL_MESSAGE] {
        client.ask(code, &send_fields(""), b"").refuses(response_code::SERVICE_NOT_AVAILABLE, "[ROLE]");
    }
    plane.change_role(false);
    client.put("second");
    assert_eq!(plane.bodies(TOPIC, 0), ["first", "second"]);
}

/// The broker that the answer to a pull from the start names.
fn suggested(plane: &Plane, changes: &[(&'static str, &str)]) -> i64 {
    let answer = plane.connect().ask(PULL_MESSAGE, &but(pull_fields(0), changes), b"");
    answer.number("suggestWhichBrokerId")
}

#[test]
fn consumers_that_are_far_behind_are_sent_to_a_replica() {
    for (slave_read, in_memory_percent, expected) in [(true, 0, 7), (true, 40, 2), (false, 0, 0)] {
        let plane = Plane::with(|setup| {
            setup.broker.pull.slave_read = slave_read;
            setup.broker.pull.in_memory_percent = in_memory_percent;
            setup.groups[0].broker_id = 2;
            setup.groups[0].slow_broker_id = 7;
        });
        assert_eq!(suggested(&plane, &[]), if slave_read { 2 } else { 0 }, "there is nothing to read");
        plane.connect().put("m");
        assert_eq!(suggested(&plane, &[]), expected);
        let unwanted = [("sysFlag", "4"), ("subscription", "other")];
        assert_eq!(suggested(&plane, &unwanted), expected, "messages that a filter leaves out count too");
    }
}

#[test]
fn a_replica_keeps_consumers_that_are_far_behind_and_sends_others_to_the_master() {
    let master = Plane::start();
    master.connect().put("m");
    for (own_broker_id, in_memory_percent, expected) in [(Some(3), 0, 3), (None, 0, 1), (Some(3), 40, 0)] {
        let replica = Plane::with(|setup| {
            setup.is_replica = true;
            setup.broker.pull.slave_read = true;
            setup.broker.pull.in_memory_percent = in_memory_percent;
            setup.broker.pull.own_broker_id = own_broker_id;
        });
        replica.copy_log(&master);
        assert_eq!(suggested(&replica, &[]), expected);
        assert_eq!(suggested(&replica, &[("queueOffset", "1")]), 0, "it has caught up");
    }
}
