//! Frames, connections and requests that are handed up to Python.

use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_server::{Event, HotRequests, Listener};
use metaq_wire::Encoding;

use crate::support::request_code::SEND_MESSAGE_V2;
use crate::support::*;

/// A request code that neither side knows.
const COLD: i32 = 34;

#[test]
fn requests_are_answered_in_their_order_however_their_bytes_arrive() {
    let plane = Plane::start();
    for chunk in [1, 7, 100, 100_000] {
        let mut client = plane.connect();
        let mut bytes = Vec::new();
        let opaques: Vec<i32> = (0..5)
            .map(|number| {
                let body = number.to_string();
                client.frame(&mut bytes, SEND_MESSAGE_V2, 0, &send_fields(""), body.as_bytes())
            })
            .collect();
        for part in bytes.chunks(chunk) {
            client.write(part);
        }
        let answered: Vec<i32> = opaques.iter().map(|_| client.answer().opaque).collect();
        assert_eq!(answered, opaques);
    }
    assert_eq!(plane.bodies(TOPIC, 0).len(), 20);
}

#[test]
fn a_connection_that_sends_no_frame_is_closed_and_others_are_not() {
    let plane = Plane::start();
    let (mut good, mut bad, mut large) = (plane.connect(), plane.connect(), plane.connect());
    good.put("one");
    bad.write(b"\x00\x00\x00\x08\x09\x00\x00\x04....");
    assert!(bad.try_answer().is_none());
    large.write(&(1_i32 << 21).to_be_bytes());
    large.write(&[0; 16]);
    assert!(large.try_answer().is_none(), "longer than frame_bytes_max");
    good.put("two");
    assert_eq!(plane.counts().connections, 1);
}

#[test]
fn a_header_that_takes_long_to_read_is_not_read() {
    let plane = Plane::with(|setup| {
        setup.server.frame_bytes_max = 8 << 20;
        setup.server.crossing_bytes_max = 8 << 20;
    });
    let (mut client, mut other) = (plane.connect(), plane.connect());
    let names: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
    let fields: Fields<'_> = names.iter().map(|name| (name.as_str(), String::new())).collect();
    other.send(COLD, &fields, b"");
    let refused = plane.crossed().fields().map_err(|error| error.to_string());
    assert_eq!(refused, Err("header has more than 256 fields, the limit".to_owned()));
    let mut bytes = Vec::new();
    client.frame(&mut bytes, COLD, 0, &vec![("n", "x".repeat(2 << 20))], b"");
    // The server closes the connection when the length has arrived, perhaps before the rest is written.
    client.pour(&bytes);
    assert!(client.try_answer().is_none());
    let Event::Closed(peer) = plane.event() else { panic!("the request crossed") };
    assert!(peer.end_reason().is_some_and(|reason| reason.contains("is longer than the limit of 1048576")));
}

#[test]
fn answers_before_a_broken_frame_are_still_written() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let mut bytes = Vec::new();
    let fields = queue_fields();
    let opaque = client.frame(&mut bytes, request_code::GET_MAX_OFFSET, 0, &fields, b"");
    bytes.extend_from_slice(b"\x00\x00\x00\x08\x09\x00\x00\x04....");
    client.write(&bytes);
    assert_eq!(client.answer().opaque, opaque);
    assert!(client.try_answer().is_none());
}

#[test]
fn a_frame_that_never_becomes_whole_ends_its_connection() {
    let plane = Plane::with(|setup| setup.server.frame_deadline_ms = 1);
    let mut client = plane.connect();
    client.write(&[0, 0, 0]);
    assert!(client.try_answer().is_none());
}

#[test]
fn a_silent_connection_ends() {
    let plane = Plane::with(|setup| setup.server.idle_timeout_ms = 1);
    assert!(plane.connect().try_answer().is_none());
}

#[test]
fn connections_are_bounded_in_all_and_per_address() {
    for per_address in [false, true] {
        let plane = Plane::with(|setup| match per_address {
            true => setup.server.connections_per_address_max = 1,
            false => setup.server.connections_max = 1,
        });
        let mut first = plane.connect();
        first.put("m");
        assert!(plane.connect().try_answer().is_none());
        first.put("m");
        drop(first);
        eventually("the first one has left", || plane.counts().connections == 0);
        plane.connect().put("m");
    }
}

#[test]
fn connections_that_say_nothing_make_way_for_those_that_do() {
    let plane = Plane::with(|setup| {
        setup.server.connections_max = 20;
        setup.server.connections_silent_max = 5;
    });
    let mut early = plane.connect();
    early.put("m");
    let crowd: Vec<_> =
        (0..60).map(|_| Client::connect_from([127, 0, 0, 2], plane.listener.port())).collect();
    for _ in 0..10 {
        plane.connect().put("m");
    }
    early.put("m");
    eventually("most of the crowd is closed", || plane.counts().connections <= 6);
    assert!(plane.counts().connections_cut >= 55);
    drop(crowd);
    assert_eq!(plane.bodies(TOPIC, 0).len(), 12);
}

#[test]
fn connections_that_say_nothing_make_way_when_all_places_of_an_address_are_taken() {
    let plane = Plane::with(|setup| setup.server.connections_per_address_max = 3);
    let (mut first, _silent, mut last) = (plane.connect(), plane.connect(), plane.connect());
    first.put("m");
    last.put("m");
    plane.connect().put("m");
    first.put("m");
    last.put("m");
}

#[test]
fn an_address_with_all_places_gives_some_of_them_to_others() {
    let plane = Plane::with(|setup| setup.server.connections_max = 8);
    let port = plane.listener.port();
    let mut crowd: Vec<_> = (0..8).map(|_| Client::connect_from([127, 0, 0, 2], port)).collect();
    for client in &mut crowd {
        client.put("m");
    }
    let (used, unused) = crowd.split_at_mut(5);
    for _ in 0..100 {
        for client in &mut *used {
            client.put("m");
        }
    }
    assert!(Client::connect_from([127, 0, 0, 2], port).try_answer().is_none());
    let mut newcomers: Vec<_> = (0..3).map(|_| plane.connect()).collect();
    eventually("three have made way", || plane.counts().connections_cut == 3);
    assert!(Client::connect_from([127, 0, 0, 2], port).try_answer().is_none());
    for newcomer in &mut newcomers {
        newcomer.put("m");
    }
    assert!(plane.connect().try_answer().is_none(), "the others are fewer than twice as many");
    for client in used.iter_mut().chain(&mut newcomers) {
        client.put("m");
    }
    assert_eq!(unused.iter_mut().filter_map(|client| client.try_answer()).count(), 0);
    assert_eq!((plane.counts().connections, plane.counts().connections_cut), (8, 3));
}

#[test]
fn a_connection_that_spoke_may_be_silent_for_longer_than_a_newcomer() {
    let plane = Plane::with(|setup| setup.server.first_frame_deadline_ms = 700);
    let mut speaker = plane.connect();
    speaker.put("m");
    assert!(plane.connect().try_answer().is_none());
    speaker.put("m");
    assert_eq!(plane.counts().connections_cut, 1);
}

#[test]
fn what_is_not_hot_crosses_with_all_its_parts_and_is_answered_from_there() {
    let plane = Plane::start();
    let mut client = plane.connect();
    let opaque = client.send(COLD, &vec![("name", "value".to_owned())], b"body");
    let crossed = plane.crossed();
    assert_eq!((crossed.code, crossed.opaque, crossed.oneway), (COLD, opaque, false));
    assert_eq!(crossed.fields().unwrap(), [("name".to_owned(), "value".to_owned())]);
    assert_eq!((&crossed.body[..], crossed.peer.remote), (&b"body"[..], client.local_address()));
    let fields = [("answer".to_owned(), "42".to_owned())];
    crossed.respond(7, Some("remark"), &fields, Bytes::from_static(b"back"));
    let answer = client.answer();
    assert_eq!((answer.opaque, answer.code, answer.remark.as_str()), (opaque, 7, "remark"));
    assert_eq!((answer.field("answer"), &answer.body[..]), ("42", &b"back"[..]));
    client.send(COLD, &Vec::new(), b"");
    plane.listener.shared.handle_again(&plane.crossed()).unwrap();
    client.answer().refuses(response_code::SYSTEM_ERROR, "not one the data plane can answer");
}

#[test]
fn the_way_up_is_bounded_in_number_and_in_time() {
    let plane = Plane::with(|setup| {
        setup.server.crossing_requests_max = 1;
        setup.server.crossing_age_ms_max = 0;
    });
    let mut client = plane.connect();
    let first = client.send(COLD, &Vec::new(), b"");
    client.ask(COLD, &Vec::new(), b"").refuses(response_code::SYSTEM_BUSY, "[OVERLOAD]");
    let crossed_at = Instant::now();
    eventually("the first one is too old", || crossed_at.elapsed() > Duration::from_millis(1));
    assert!(plane.listener.shared.crossing.drain(10).is_empty());
    let answer = client.answer();
    assert_eq!(answer.opaque, first);
    answer.refuses(response_code::SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]");
}

#[test]
fn connections_take_turns_on_the_way_up() {
    let plane = Plane::start();
    let (mut greedy, mut modest) = (plane.connect(), plane.connect());
    for _ in 0..50 {
        greedy.send(COLD, &Vec::new(), b"greedy");
    }
    greedy.expect_silence();
    modest.send(COLD, &Vec::new(), b"modest");
    modest.expect_silence();
    let first_two = [plane.crossed().body.clone(), plane.crossed().body.clone()];
    assert!(first_two.contains(&Bytes::from_static(b"modest")), "{first_two:?}");
}

#[test]
fn an_address_with_many_connections_has_one_turn_on_the_way_up() {
    let plane = Plane::with(|setup| setup.server.crossing_requests_max = 1_000);
    let mut crowd: Vec<_> = (0..30).map(|_| plane.connect()).collect();
    for client in &mut crowd {
        client.send(COLD, &Vec::new(), b"crowd");
        client.send(COLD, &Vec::new(), b"crowd");
    }
    let mut other = Client::connect_from([127, 0, 0, 9], plane.listener.port());
    other.send(COLD, &Vec::new(), b"other");
    other.expect_silence();
    let first_two = [plane.crossed().body.clone(), plane.crossed().body.clone()];
    assert!(first_two.contains(&Bytes::from_static(b"other")), "{first_two:?}");
    let rest = (0..59).filter(|_| plane.crossed().body == "crowd").count();
    assert_eq!(rest, 59);
}

#[test]
fn a_full_way_up_has_room_for_a_connection_that_asked_nothing_yet() {
    let plane = Plane::with(|setup| setup.server.crossing_requests_max = 4);
    let (mut greedy, mut modest) = (plane.connect(), plane.connect());
    let mut other = Client::connect_from([127, 0, 0, 9], plane.listener.port());
    for _ in 0..2 {
        greedy.send(COLD, &Vec::new(), b"greedy");
    }
    greedy.ask(COLD, &Vec::new(), b"greedy").refuses(response_code::SYSTEM_BUSY, "requests of this address");
    modest.send(COLD, &Vec::new(), b"modest");
    modest.ask(COLD, &Vec::new(), b"again").refuses(response_code::SYSTEM_BUSY, "requests of this address");
    other.send(COLD, &Vec::new(), b"other");
    other.ask(COLD, &Vec::new(), b"again").refuses(response_code::SYSTEM_BUSY, "too many requests wait");
    let crossed: Vec<Bytes> = (0..4).map(|_| plane.crossed().body.clone()).collect();
    assert!(crossed.contains(&Bytes::from_static(b"modest")), "{crossed:?}");
}

#[test]
fn a_connection_that_is_paused_holds_up_only_itself() {
    let plane = Plane::start();
    let crossing = &plane.listener.shared.crossing;
    let (mut paused, mut other) = (plane.connect(), plane.connect());
    paused.send(COLD, &Vec::new(), b"0");
    let connection = plane.crossed().peer.id;
    paused.send(COLD, &Vec::new(), b"1");
    paused.expect_silence();
    crossing.pause(connection, true);
    paused.send(COLD, &Vec::new(), b"2");
    paused.expect_silence();
    assert!(crossing.drain(10).is_empty());
    other.send(COLD, &Vec::new(), b"other");
    assert_eq!(&plane.crossed().body[..], b"other");
    crossing.pause(connection, false);
    assert_eq!((&plane.crossed().body[..], &plane.crossed().body[..]), (&b"1"[..], &b"2"[..]));
    drop(paused);
    assert!(matches!(plane.event(), Event::Closed(peer) if peer.id == connection));
}

#[test]
fn one_connection_has_a_bound_of_its_own_on_the_way_up() {
    for by_bytes in [false, true] {
        let plane = Plane::with(|setup| match by_bytes {
            false => setup.server.crossing_requests_per_connection_max = 2,
            true => setup.server.crossing_bytes_per_connection_max = 600,
        });
        let (mut greedy, mut modest) = (plane.connect(), plane.connect());
        let body = [b'x'; 400];
        let count = if by_bytes { 1 } else { 2 };
        for _ in 0..count {
            greedy.send(COLD, &Vec::new(), &body);
        }
        let refused = greedy.ask(COLD, &Vec::new(), &body);
        refused.refuses(response_code::SYSTEM_BUSY, "requests of this connection");
        modest.send(COLD, &Vec::new(), &[b'y'; 800]);
        let crossed: Vec<u8> = (0..=count).map(|_| plane.crossed().body.clone()[0]).collect();
        assert!(crossed.contains(&b'y'), "a single request always crosses, whatever its size");
    }
}

#[test]
fn the_server_asks_its_clients_and_hears_when_they_leave() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.send(COLD, &Vec::new(), b"");
    let connection = plane.crossed().peer.id;
    let fields = [("topic".to_owned(), TOPIC.to_owned())];
    let opaque = plane.listener.invoke(connection, 40, &fields, Bytes::from_static(b"?"), false).unwrap();
    let request = client.answer();
    assert_eq!((request.is_response, request.code, request.opaque), (false, 40, opaque));
    assert_eq!((request.field("topic"), &request.body[..]), (TOPIC, &b"?"[..]));
    client.respond(opaque, 0);
    match plane.event() {
        Event::Answer(answer) => assert_eq!((answer.opaque, answer.code), (opaque, 0)),
        _ => panic!("expected the client's answer"),
    }
    drop(client);
    match plane.event() {
        Event::Closed(peer) => assert_eq!(peer.id, connection),
        _ => panic!("expected the end of the connection"),
    }
    assert!(plane.listener.invoke(connection, 40, &[], Bytes::new(), true).is_err());
}

#[test]
fn a_server_without_a_broker_sends_everything_up() {
    let settings = Plane::with(|_| ()).listener.shared.settings.clone();
    let server = Listener::bind(settings, HotRequests::Cross).unwrap();
    server.start().unwrap();
    let mut client = Client::connect(server.port(), Encoding::Json);
    let opaque = client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    eventually("the request crosses", || match server.shared.crossing.drain(1).pop() {
        Some(Event::Request(crossed)) => {
            crossed.respond(9, None, &[], Bytes::new());
            true
        }
        _ => false,
    });
    let answer = client.answer();
    assert_eq!((answer.opaque, answer.code), (opaque, 9));
    server.stop(PATIENCE);
}

#[test]
fn between_two_planes_hot_requests_are_refused_and_connections_live_on() {
    let plane = Plane::start();
    let mut client = plane.connect();
    client.put("before");
    plane.broker_plane.stop(true);
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"m");
    assert_eq!(answer.code, response_code::SERVICE_NOT_AVAILABLE);
    assert_eq!(plane.bodies(TOPIC, 0), ["before"]);
    assert_eq!(plane.counts().connections, 1);
}
