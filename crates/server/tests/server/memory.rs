//! The memory that clients make a server hold: counted, bounded and given back.

use std::collections::BTreeSet;

use bytes::Bytes;
use metaq_server::{Crossed, Event};
use metaq_wire::tag_code;

use crate::support::request_code::{PULL_MESSAGE, SEND_MESSAGE_V2};
use crate::support::*;

/// A request code that neither side knows.
const COLD: i32 = 34;
const MIB: u64 = 1 << 20;
/// More than the sockets of one connection hold.
const SOCKET_BYTES: u64 = 16 * MIB;

fn held_fields(tags: &str) -> Fields<'static> {
    let fields = but(pull_fields(0), &[("sysFlag", "6"), ("subVersion", "0"), ("subscription", tags)]);
    but(fields, &[("suspendTimeoutMillis", "60000")])
}

/// `count` requests in one piece.
fn requests(client: &mut Client, count: usize, code: i32, fields: &Fields<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        client.frame(&mut bytes, code, 0, fields, b"");
    }
    bytes
}

fn end_reason(plane: &Plane) -> String {
    loop {
        if let Event::Closed(peer) = plane.event() {
            return peer.end_reason().unwrap_or_default().to_owned();
        }
    }
}

#[test]
fn a_peer_that_does_not_read_pythons_answers_is_cut() {
    let plane = Plane::with(|setup| setup.server.connection_memory_bytes_max = 4 << 20);
    let mut client = plane.connect();
    client.put("it is connected");
    let mut answered = 0;
    while plane.counts().connections == 1 {
        let bytes = requests(&mut client, 1, COLD, &Vec::new());
        client.pour(&bytes);
        match plane.event() {
            Event::Request(crossed) => crossed.respond(0, None, &[], Bytes::from(vec![0; 1 << 20])),
            _ => break,
        }
        answered += 1;
        assert!(plane.counts().memory_bytes < 6 * MIB, "{:?}", plane.counts());
        assert!(answered * MIB < 4 * MIB + SOCKET_BYTES, "never cut");
    }
    eventually("the connection has ended", || plane.counts().connections == 0);
    assert_eq!(plane.counts().connections_cut, 1);
    assert!(plane.counts().memory_bytes_peak >= 4 * MIB);
    eventually("nothing is kept for it", || plane.counts().memory_bytes == 0);
}

#[test]
fn the_log_line_of_a_cut_says_who_kept_how_much_and_which_limit_it_passed() {
    let plane = Plane::with(|setup| setup.server.connection_memory_bytes_max = 1 << 16);
    let mut client = plane.connect();
    client.send(COLD, &Vec::new(), b"");
    let crossed = plane.crossed();
    for _ in 0..2 * SOCKET_BYTES / MIB {
        crossed.respond(0, None, &[], Bytes::from(vec![0; 1 << 20]));
    }
    let reason = end_reason(&plane);
    assert!(reason.contains("does not read its answers") && reason.contains("connection_memory_bytes_max"));
    assert_eq!(plane.counts().connections_cut, 1);
}

#[test]
fn held_pulls_count_with_their_filters() {
    let plane = Plane::with(|setup| setup.server.connection_memory_bytes_max = 2 << 20);
    let mut client = plane.connect();
    client.ask(PULL_MESSAGE, &held_fields(&"a||".repeat(30_000)), b"").refuses(
        response_code::SUBSCRIPTION_PARSE_FAILED,
        "90000 bytes, the limit is 65536 (pull_filter_bytes_max)",
    );
    let tags: Vec<String> = (0..8_000).map(|tag| tag.to_string()).collect();
    let distinct: BTreeSet<i64> = tags.iter().map(|tag| tag_code(tag)).collect();
    let fields = held_fields(&tags.join("||"));
    let fitting = (1 << 20) / (8 * distinct.len() + 1_024);
    for _ in 0..fitting - 5 {
        client.send(PULL_MESSAGE, &fields, b"");
    }
    client.expect_silence();
    assert!(plane.counts().memory_bytes > 1 << 19);
    for _ in 0..10 {
        client.send(PULL_MESSAGE, &fields, b"");
    }
    client.answer().refuses(response_code::SYSTEM_BUSY, "(connection_memory_bytes_max)");
    let mut other = plane.connect();
    other.send(PULL_MESSAGE, &fields, b"");
    other.expect_silence();
    drop((client, other));
    eventually("nothing is kept for them", || plane.counts().memory_bytes == 0);
}

#[test]
fn a_connection_holds_so_many_pulls_and_others_hold_theirs() {
    let plane = Plane::with(|setup| setup.broker.pull.connection_hold_max = 2);
    let (mut client, mut other) = (plane.connect(), plane.connect());
    for _ in 0..2 {
        client.send(PULL_MESSAGE, &held_fields("*"), b"");
        other.send(PULL_MESSAGE, &held_fields("*"), b"");
    }
    other.expect_silence();
    client.ask(PULL_MESSAGE, &held_fields("*"), b"").refuses(
        response_code::SYSTEM_BUSY,
        "2 pulls of this connection are held already (connection_hold_max)",
    );
    plane.connect().put("for all four");
    for client in [&mut client, &mut other] {
        assert_eq!([client.answer(), client.answer()].map(|answer| answer.bodies().len()), [1, 1]);
    }
    let later = but(held_fields("*"), &[("queueOffset", "1")]);
    client.send(PULL_MESSAGE, &later, b"");
    client.expect_silence();
}

#[test]
fn the_budget_of_all_connections_holds_and_those_that_do_not_read_are_cut() {
    let plane = Plane::with(|setup| {
        setup.server.connection_output_bytes_max = 1 << 20;
        setup.server.memory_bytes_max = 16 << 20;
    });
    let mut healthy = plane.connect();
    healthy.put(&"x".repeat(1_800));
    let mut mute: Vec<Client> = (0..6).map(|_| plane.connect()).collect();
    let mut crossed: Vec<Crossed> = Vec::new();
    for client in &mut mute {
        for _ in 0..2 {
            client.send(COLD, &Vec::new(), b"");
            crossed.push(plane.crossed());
        }
    }
    for client in &mut mute {
        let bytes = requests(client, 5_000, PULL_MESSAGE, &pull_fields(0));
        client.pour(&bytes);
    }
    let mut before = 0;
    eventually("none of them is served any further", || {
        // To another queue, so that the answers to their pulls stay small and are copied.
        assert_eq!(healthy.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("e", "1")]), b"beside").code, 0);
        let now = plane.counts().messages_out;
        std::mem::replace(&mut before, now) == now && plane.counts().memory_bytes > 6 * MIB
    });
    for request in &crossed {
        request.respond(0, None, &[], Bytes::from(vec![0; 1 << 20]));
    }
    eventually("some are cut", || plane.counts().connections_cut > 0);
    eventually("the rest fits", || plane.counts().memory_bytes <= 16 * MIB);
    let figures = plane.counts();
    assert!(figures.memory_bytes_peak <= 16 * MIB, "{figures:?}");
    assert!(figures.connections_cut < 6, "no more than needed: {figures:?}");
    assert!(end_reason(&plane).contains("(memory_bytes_max)"));
    healthy.put("still served");
    drop((mute, crossed));
    eventually("they have left", || plane.counts().connections == 1);
    eventually("nothing is kept for them", || plane.counts().memory_bytes < 1 << 17);
}

#[test]
fn connections_that_come_at_once_do_not_fill_the_budget_with_empty_buffers() {
    let plane = Plane::with(|setup| setup.server.memory_bytes_max = 4 << 20);
    // Each has a buffer for one read, and the budget has room for 64 of these.
    let mut clients: Vec<Client> = (0..90).map(|_| plane.connect()).collect();
    for client in &mut clients {
        client.put("one message");
    }
    for client in &mut clients {
        client.put("and another one");
    }
    let figures = plane.counts();
    assert_eq!((figures.connections_cut, figures.connections), (0, 90), "{figures:?}");
}

#[test]
fn not_even_the_first_answer_to_a_peer_exceeds_the_budget() {
    let plane = Plane::with(|setup| setup.server.memory_bytes_max = 4 << 20);
    let (mut small, mut large) = (plane.connect(), plane.connect());
    for (client, answer_bytes) in [(&mut small, 3 << 20), (&mut large, 5 << 20)] {
        client.send(COLD, &Vec::new(), b"");
        plane.crossed().respond(0, None, &[], Bytes::from(vec![0; answer_bytes]));
    }
    assert_eq!(small.answer().body.len(), 3 << 20);
    assert!(end_reason(&plane).contains("(memory_bytes_max)"));
    let figures = plane.counts();
    assert!((3 * MIB..=4 * MIB).contains(&figures.memory_bytes_peak), "{figures:?}");
    assert_eq!((figures.connections_cut, figures.connections), (1, 1));
}

#[test]
fn frames_that_never_become_whole_are_within_the_budget_and_make_room_for_others() {
    let plane = Plane::with(|setup| setup.server.memory_bytes_max = 4 << 20);
    let mut healthy = plane.connect();
    let mut trickling: Vec<Client> = (0..8).map(|_| plane.connect()).collect();
    for client in &mut trickling {
        let mut bytes = (1_000_000_i32).to_be_bytes().to_vec();
        bytes.resize(900_000, 0);
        bytes[4..8].copy_from_slice(&100_i32.to_be_bytes());
        client.pour(&bytes);
        healthy.put("beside them");
    }
    let figures = plane.counts();
    assert!(figures.memory_bytes > 2 * MIB && figures.memory_bytes_peak <= 4 * MIB, "{figures:?}");
    // Longer than one read, so it may have to wait for their memory.
    healthy.send(COLD, &Vec::new(), &[0; 150_000]);
    let is_here = || matches!(plane.event(), Event::Request(crossed) if crossed.body.len() == 150_000);
    eventually("the long request gets through", is_here);
    assert!(plane.counts().connections_cut > 0);
}

#[test]
fn a_long_frame_gets_the_memory_of_peers_that_do_not_read() {
    let plane = Plane::with(|setup| {
        setup.server.connection_output_bytes_max = 2 << 20;
        setup.server.memory_bytes_max = 8 << 20;
    });
    let mut healthy = plane.connect();
    healthy.put(&"x".repeat(1_800));
    let mut mute: Vec<Client> = (0..6).map(|_| plane.connect()).collect();
    for client in &mut mute {
        let bytes = requests(client, 5_000, PULL_MESSAGE, &pull_fields(0));
        client.pour(&bytes);
    }
    // No connection is read from that does not read, so they stay below the mark from which on some are closed. On a
    // busy machine one of them may exceed it for a moment and be closed already.
    eventually("long frames have no room", || {
        plane.counts().memory_bytes >= 7 * MIB || plane.counts().connections_cut > 0
    });
    healthy.send(COLD, &Vec::new(), &[0; 150_000]);
    let is_here = || matches!(plane.event(), Event::Request(crossed) if crossed.body.len() == 150_000);
    eventually("the long request gets through", is_here);
    let figures = plane.counts();
    assert!((1..6).contains(&figures.connections_cut), "no more than needed: {figures:?}");
}

#[test]
fn a_header_that_is_too_long_is_refused_before_it_is_read() {
    let plane = Plane::with(|setup| setup.server.frame_bytes_max = 16 << 20);
    let mut client = plane.connect();
    let length = (4_i32 << 20).to_be_bytes();
    let header_length = (2_i32 << 20).to_be_bytes();
    client.write(&[length, header_length].concat());
    let reason = end_reason(&plane);
    assert!(reason.contains("header of 2097152 bytes"), "{reason}");
}

#[test]
fn a_frame_that_trickles_has_no_buffer_for_more_than_its_bytes() {
    let plane = Plane::start();
    let mut trickling: Vec<Client> = (0..16).map(|_| plane.connect()).collect();
    for client in &mut trickling {
        client.write(&[0, 0, 8, 0, 0]);
    }
    eventually("each has a buffer", || plane.counts().memory_bytes_peak >= 16 << 16);
    eventually("those that are silent give it back", || plane.counts().memory_bytes == 0);
    for client in &mut trickling {
        client.write(&[0]);
    }
    eventually("those that go on as well", || plane.counts().memory_bytes == 0);
    assert_eq!(plane.counts().connections_cut, 0);
}

#[test]
fn requests_that_wait_for_python_count_until_they_are_gone() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send(COLD, &Vec::new(), &[0; 400_000]);
    let crossed = plane.crossed();
    eventually("the request is kept and nothing else", || {
        (380_000..420_000).contains(&plane.counts().memory_bytes)
    });
    drop(crossed);
    assert_eq!(plane.counts().memory_bytes, 0);
}

/// Sends messages that together make an answer of nearly 1 MiB.
fn put_a_mebibyte(plane: &Plane) {
    let mut client = plane.connect();
    for _ in 0..16 {
        client.put(&"x".repeat(64_000));
    }
}

#[test]
fn a_connection_whose_output_is_full_gets_no_more_and_loses_nothing() {
    let plane = Plane::with(|setup| setup.server.connection_output_bytes_max = 1 << 20);
    put_a_mebibyte(&plane);
    let mut client = plane.connect();
    let fields = but(pull_fields(0), &[("maxMsgBytes", "1048576")]);
    let bytes = requests(&mut client, 100, PULL_MESSAGE, &fields);
    client.write(&bytes);
    let mut other = plane.connect();
    let mut before = plane.counts().bytes_out;
    eventually("the broker serves it no further", || {
        other.put("beside it");
        std::mem::replace(&mut before, plane.counts().bytes_out) == plane.counts().bytes_out && before > 0
    });
    assert!(plane.counts().bytes_out < SOCKET_BYTES + 2 * MIB, "{:?}", plane.counts());
    for _ in 0..100 {
        assert!(client.answer().body.len() > 1_000_000);
    }
}

#[test]
fn between_the_frames_of_one_connection_others_have_their_turn() {
    let plane = Plane::with(|setup| setup.server.connection_output_bytes_max = 1 << 30);
    put_a_mebibyte(&plane);
    let (mut greedy, mut healthy) = (plane.connect(), plane.connect());
    let fields = but(pull_fields(0), &[("maxMsgBytes", "1048576"), ("maxMsgNums", "16")]);
    // A busy machine may not let this thread run between two turns, so there are several rounds. Without turns no round
    // could ever have a message between its pulls.
    let most = (0..50)
        .map(|_| {
            let before = plane.counts().bytes_out;
            // One read of the socket gets all of them.
            let bytes = requests(&mut greedy, 100, PULL_MESSAGE, &fields);
            assert!(bytes.len() < 64 * 1024);
            greedy.write(&bytes);
            while plane.counts().bytes_out < before + 100 * 1_000_000 {
                let answer = healthy.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("e", "0")]), b"m");
                assert_eq!(answer.code, 0);
            }
            let ends: BTreeSet<i64> = (0..100).map(|_| greedy.answer().number("maxOffset")).collect();
            ends.len()
        })
        .find(|ends| *ends > 5);
    assert!(most.is_some(), "messages came between its pulls");
}

#[test]
fn a_silent_connection_keeps_no_buffers() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put(&"x".repeat(60_000));
    // The buffers are counted after the answer was written, and may be gone again when this thread looks.
    eventually("they are counted", || plane.counts().memory_bytes_peak >= 1 << 16);
    eventually("it gives them back", || plane.counts().memory_bytes == 0);
    client.put("still there");
}

#[test]
fn a_group_has_one_account_over_all_its_connections() {
    let plane = Plane::with(|setup| {
        setup.groups.push(group("others"));
        setup.server.group_memory_bytes_max = 8 << 10;
    });
    plane.listener.count_group_memory(GROUP, 2_000);
    let mut clients = [plane.connect(), plane.connect(), plane.connect()];
    let mut held = 0;
    // Each pull takes more than 512 bytes, and what the control plane keeps counts as well.
    for _ in 0..4 {
        for client in &mut clients[..2] {
            client.send(PULL_MESSAGE, &held_fields("*"), b"");
            held += 1;
        }
    }
    clients[0].expect_silence();
    clients[1].expect_silence();
    let figures = plane.counts();
    assert!(figures.group_memory_bytes > 2_000 + 512 * held, "{figures:?}");
    for _ in 0..8 {
        clients[2].send(PULL_MESSAGE, &held_fields("*"), b"");
    }
    clients[2].answer().refuses(
        response_code::SYSTEM_BUSY,
        "for group[readers], and the limit is 8192 (group_memory_bytes_max)",
    );
    let mut other = plane.connect();
    other.send(PULL_MESSAGE, &but(held_fields("*"), &[("consumerGroup", "others")]), b"");
    other.expect_silence();
    drop((clients, other));
    eventually("only the control plane keeps some", || plane.counts().group_memory_bytes == 2_000);
    plane.listener.count_group_memory(GROUP, -2_000);
    let figures = plane.counts();
    assert_eq!((figures.group_memory_bytes, figures.group_memory_bytes_peak > 6_000), (0, true));
}
