//! Requests that take long are kept for the log, with the parts of their time.

use std::time::{Duration, Instant};

use metaq_server::SlowRequest;
use metaq_store::faulty_disk::Call;

use crate::support::request_code::{PULL_MESSAGE, SEND_MESSAGE_V2};
use crate::support::*;

/// Every wait of these tests is longer, so the limit lies far from what a quick request takes.
const WAIT: Duration = Duration::from_millis(120);
const LIMIT_MS: u64 = 100;

fn plane() -> Plane {
    let plane = Plane::start();
    plane.listener.shared.slow_requests.set_limit_ms(LIMIT_MS);
    plane
}

fn pass_time() {
    let began = Instant::now();
    eventually("time passes", || began.elapsed() >= WAIT);
}

fn part(slow: &SlowRequest, name: &str) -> u64 {
    slow.parts.iter().find(|(part, _)| *part == name).map_or(0, |(_, ms)| *ms)
}

/// Sends a message, and does `release` once it has waited for a while.
fn slow_send(plane: &Plane, release: impl FnOnce()) -> SlowRequest {
    let mut client = plane.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    client.expect_silence();
    pass_time();
    release();
    assert_eq!(client.answer().code, response_code::SUCCESS);
    let (slow, left_out) = plane.listener.shared.slow_requests.take();
    assert_eq!((slow.len(), left_out), (1, 0));
    assert_eq!(slow[0].remote, client.local_address());
    slow[0].clone()
}

#[test]
fn a_send_that_waited_for_the_disk() {
    let plane = plane();
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let slow = slow_send(&plane, || plane.disk.heal());
    assert_eq!((slow.request_code, slow.topic.as_deref()), (Some(SEND_MESSAGE_V2), Some(TOPIC)));
    assert!(part(&slow, "flush") >= LIMIT_MS, "{slow:?}");
    assert_eq!(part(&slow, "replicas"), 0);
}

#[test]
fn a_send_that_waited_for_replicas() {
    let plane = plane();
    plane.store.gate_confirmation(0);
    let slow = slow_send(&plane, || plane.store.confirm_replicated(plane.store.end_offset()));
    assert!(part(&slow, "replicas") >= LIMIT_MS / 2, "{slow:?}");
    assert!(part(&slow, "flush") < part(&slow, "replicas"), "{slow:?}");
}

#[test]
fn quick_requests_and_held_pulls_are_not_slow() {
    let plane = plane();
    let (mut sender, mut reader) = (plane.connect(), plane.connect());
    let held = but(pull_fields(0), &[("sysFlag", "2"), ("suspendTimeoutMillis", "60000")]);
    reader.send(PULL_MESSAGE, &held, b"");
    reader.expect_silence();
    pass_time();
    sender.put("m");
    assert_eq!(reader.answer().bodies(), ["m"]);
    let (slow, _) = plane.listener.shared.slow_requests.take();
    assert!(slow.iter().all(|request| request.request_code == Some(SEND_MESSAGE_V2)), "{slow:?}");
}

#[test]
fn a_send_that_waited_for_a_limit_is_not_slow() {
    let plane = Plane::with(|setup| setup.topics[0].send_limit = messages_per_second(10));
    plane.listener.shared.slow_requests.set_limit_ms(LIMIT_MS);
    let mut client = plane.connect();
    client.put("free");
    plane.listener.shared.slow_requests.take();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"slowed");
    client.expect_silence();
    pass_time();
    plane.clock.advance_ms(100);
    assert_eq!(client.answer().code, response_code::SUCCESS);
    assert_eq!(plane.counts().sends_slowed, 1);
    assert_eq!(plane.listener.shared.slow_requests.take(), (Vec::new(), 0));
}

#[test]
fn nothing_is_kept_while_it_is_off() {
    let plane = plane();
    plane.listener.shared.slow_requests.set_limit_ms(0);
    plane.disk.stall(Call::SyncMapped, "commitlog");
    let mut client = plane.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    client.expect_silence();
    pass_time();
    plane.disk.heal();
    assert_eq!(client.answer().code, response_code::SUCCESS);
    assert_eq!(plane.listener.shared.slow_requests.take(), (Vec::new(), 0));
}

#[test]
fn requests_of_one_pass_share_its_time() {
    const REQUESTS: usize = 1_000;
    let plane = plane();
    plane.listener.shared.slow_requests.set_limit_ms(1);
    let mut client = plane.connect();
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS {
        client.frame(&mut bytes, PULL_MESSAGE, 0, &pull_fields(0), b"");
    }
    eventually("a pass takes a millisecond", || {
        client.pour(&bytes);
        client.skip_answers(REQUESTS);
        let (slow, _) = plane.listener.shared.slow_requests.take();
        slow.iter().any(|pass| {
            pass.request_code == Some(PULL_MESSAGE) && pass.requests > 1 && part(pass, "handled") >= 1
        })
    });
}

#[test]
fn a_client_that_does_not_read_its_answers() {
    const PULLS: usize = 300;
    let plane = plane();
    let mut client = plane.connect();
    client.put(&"x".repeat(60_000));
    plane.listener.shared.slow_requests.take();
    let mut bytes = Vec::new();
    for _ in 0..PULLS {
        client.frame(&mut bytes, PULL_MESSAGE, 0, &pull_fields(0), b"");
    }
    client.write(&bytes);
    pass_time();
    client.skip_answers(PULLS);
    eventually("it is noted", || {
        let (slow, _) = plane.listener.shared.slow_requests.take();
        slow.iter().any(|late| late.request_code.is_none() && part(late, "written") >= LIMIT_MS / 2)
    });
}
