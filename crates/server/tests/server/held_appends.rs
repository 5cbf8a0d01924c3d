//! Requests that append are kept back while the master moves, and handled in their order afterwards.

use std::time::Duration;

use metaq_wire::Encoding;

use crate::support::request_code::{
    END_TRANSACTION, PULL_MESSAGE, QUERY_CONSUMER_OFFSET, SEND_MESSAGE_V2, UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;

fn commit_fields(committed_offset: &str) -> Fields<'static> {
    but(queue_fields(), &[("consumerGroup", GROUP), ("commitOffset", committed_offset)])
}

#[test]
fn appends_wait_in_their_order_and_reads_go_on() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let plane = Plane::start();
        let mut client = plane.connect_with(encoding);
        client.put("before");
        plane.listener.shared.hold_appends(PATIENCE);
        let end = plane.store.end_offset();
        let mut held: Vec<i32> = ["1", "2", "3"]
            .map(|body| client.send(SEND_MESSAGE_V2, &send_fields(""), body.as_bytes()))
            .to_vec();
        held.push(client.send(UPDATE_CONSUMER_OFFSET, &commit_fields("1"), b""));
        held.push(client.send(END_TRANSACTION, &vec![], b""));
        client.send_oneway(SEND_MESSAGE_V2, &send_fields(""), b"oneway");
        assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").bodies(), ["before"]);
        assert_eq!(plane.store.end_offset(), end);
        assert!(plane.listener.shared.release_appends());
        held.push(client.send(SEND_MESSAGE_V2, &send_fields(""), b"after"));
        let mut answered: Vec<i32> = held.iter().map(|_| client.answer().opaque).collect();
        answered.sort_unstable();
        assert_eq!(answered, held, "each of them is answered once");
        assert_eq!(plane.bodies(TOPIC, 0), ["before", "1", "2", "3", "oneway", "after"]);
        let group = but(queue_fields(), &[("consumerGroup", GROUP)]);
        assert_eq!(client.ask(QUERY_CONSUMER_OFFSET, &group, b"").number("offset"), 1);
        assert!(!plane.listener.shared.release_appends(), "nothing is kept back any more");
    }
}

#[test]
fn a_planned_switch_costs_clients_of_the_old_master_no_error() {
    let (mut old, mut new) = (Plane::start(), Plane::replica());
    let mut client = old.connect();
    client.put("0");
    old.listener.shared.hold_appends(PATIENCE);
    let mut opaques: Vec<i32> =
        ["1", "2"].map(|body| client.send(SEND_MESSAGE_V2, &send_fields(""), body.as_bytes())).to_vec();
    client.expect_silence();
    new.copy_log(&old);
    new.store.ungate_confirmation();
    new.change_role(false);
    old.broker_plane.stop(true);
    opaques.push(client.send(SEND_MESSAGE_V2, &send_fields(""), b"3"));
    let refused = client.ask(PULL_MESSAGE, &pull_fields(0), b"");
    refused.refuses(response_code::SERVICE_NOT_AVAILABLE, "[ROLE]");
    old.change_role(true);
    old.listener.set_relay(Some(&format!("127.0.0.1:{}", new.listener.port()))).unwrap();
    assert!(old.listener.shared.release_appends());
    opaques.push(client.send(SEND_MESSAGE_V2, &send_fields(""), b"4"));
    for (place, opaque) in opaques.into_iter().enumerate() {
        let answer = client.answer();
        assert_eq!((answer.code, answer.opaque), (response_code::SUCCESS, opaque));
        assert_eq!(answer.number("queueOffset"), place as i64 + 1);
    }
    assert_eq!(new.bodies(TOPIC, 0), ["0", "1", "2", "3", "4"]);
    assert_eq!(old.bodies(TOPIC, 0), ["0"]);
}

#[test]
fn a_request_that_python_hands_back_waits_too() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send(SEND_MESSAGE_V2, &but(send_fields(""), &[("b", "young")]), b"m");
    let crossed = plane.crossed();
    plane.broker().policy.put_topics(vec![topic("young")]);
    plane.listener.shared.hold_appends(PATIENCE);
    plane.listener.shared.handle_again(&crossed).unwrap();
    client.expect_silence();
    assert!(plane.bodies("young", 0).is_empty());
    plane.listener.shared.release_appends();
    assert_eq!(client.answer().code, response_code::SUCCESS);
    assert_eq!(plane.bodies("young", 0), ["m"]);
}

#[test]
fn a_topic_that_is_unknown_after_the_switch_crosses() {
    let plane = Plane::start();
    let mut client = plane.connect();
    plane.listener.shared.hold_appends(PATIENCE);
    client.send(SEND_MESSAGE_V2, &but(send_fields(""), &[("b", "young")]), b"m");
    client.expect_silence();
    plane.listener.shared.release_appends();
    assert_eq!(plane.crossed().code, SEND_MESSAGE_V2);
}

#[test]
fn what_is_kept_back_is_bounded_in_number_and_bytes() {
    for by_bytes in [false, true] {
        let plane = Plane::with(|setup| match by_bytes {
            false => setup.server.held_requests_max = 1,
            true => setup.server.held_bytes_max = 1_000,
        });
        let mut client = plane.connect();
        plane.listener.shared.hold_appends(PATIENCE);
        let first = client.send(SEND_MESSAGE_V2, &send_fields(""), b"kept");
        let body = if by_bytes { vec![b'x'; 1_000] } else { b"m".to_vec() };
        let refused = client.ask(SEND_MESSAGE_V2, &send_fields(""), &body);
        refused.refuses(
            response_code::SYSTEM_BUSY,
            if by_bytes { "held_bytes_max" } else { "held_requests_max" },
        );
        plane.listener.shared.release_appends();
        assert_eq!(client.answer().opaque, first);
        assert_eq!(plane.bodies(TOPIC, 0), ["kept"]);
    }
}

#[test]
fn what_waits_too_long_is_refused_and_later_requests_are_served() {
    let plane = Plane::start();
    let mut client = plane.connect();
    plane.listener.shared.hold_appends(PATIENCE);
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    client.expect_silence();
    plane.listener.shared.hold_appends(Duration::ZERO);
    client.answer().refuses(response_code::SERVICE_NOT_AVAILABLE, "[ROLE]");
    eventually("the wait is over", || {
        client.ask(SEND_MESSAGE_V2, &send_fields(""), b"late").code == response_code::SUCCESS
    });
    assert!(!plane.listener.shared.release_appends(), "whoever releases them learns that they are gone");
    assert_eq!(plane.bodies(TOPIC, 0), ["late"]);
}

#[test]
fn one_address_cannot_use_up_the_room_for_what_is_kept_back() {
    let plane = Plane::with(|setup| setup.server.held_requests_max = 4);
    let (mut stranger, mut again) = (plane.connect(), plane.connect());
    let mut honest = Client::connect_from([127, 0, 0, 9], plane.listener.port());
    plane.listener.shared.hold_appends(PATIENCE);
    for body in ["1", "2"] {
        stranger.send(SEND_MESSAGE_V2, &send_fields(""), body.as_bytes());
    }
    stranger.expect_silence();
    let refused = again.ask(SEND_MESSAGE_V2, &send_fields(""), b"3");
    refused.refuses(response_code::SYSTEM_BUSY, "half of that of this address");
    let kept = honest.send(SEND_MESSAGE_V2, &send_fields(""), b"honest");
    honest.expect_silence();
    plane.listener.shared.release_appends();
    assert_eq!((honest.answer().opaque, stranger.answer().code), (kept, response_code::SUCCESS));
    assert_eq!(plane.bodies(TOPIC, 0), ["1", "2", "honest"]);
    plane.listener.shared.hold_appends(PATIENCE);
    let kept = again.send(SEND_MESSAGE_V2, &send_fields(""), b"again");
    again.expect_silence();
    plane.listener.shared.release_appends();
    assert_eq!(again.answer().opaque, kept, "what was released takes no room");
}
