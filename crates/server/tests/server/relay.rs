//! A replica relays to its master what only a master can answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::Bytes;
use metaq_wire::{Encoding, FrameEncoder, Header, next_frame};
use socket2::{Domain, Socket, Type};

use crate::support::request_code::{
    END_TRANSACTION, PULL_MESSAGE, QUERY_CONSUMER_OFFSET, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2,
    UPDATE_CONSUMER_OFFSET,
};
use crate::support::*;

/// A request code that only Python knows.
const LOCK: i32 = 41;

fn relay_to(replica: &Plane, port: u16) {
    replica.listener.set_relay(Some(&format!("127.0.0.1:{port}"))).unwrap();
}

/// A master, and a replica that relays to it.
fn pair() -> (Plane, Plane) {
    let (master, replica) = (Plane::start(), Plane::replica());
    relay_to(&replica, master.listener.port());
    (master, replica)
}

/// A master that the test plays itself.
struct FakeMaster {
    listener: TcpListener,
}

impl FakeMaster {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        FakeMaster { listener }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn accept(&self) -> TcpStream {
        let mut accepted = None;
        eventually("the replica connects", || {
            accepted = self.listener.accept().ok();
            accepted.is_some()
        });
        let stream = accepted.unwrap().0;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Reads one whole request and returns its opaque.
fn read_request(stream: &mut TcpStream) -> i32 {
    let mut buffer = Vec::new();
    loop {
        if let Some(frame) = next_frame(&buffer, usize::MAX).unwrap() {
            return Header::parse(frame.encoding, frame.header).unwrap().opaque;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        buffer.push(byte[0]);
    }
}

fn respond(stream: &mut TcpStream, opaque: i32, remark: &str) {
    let mut bytes = Vec::new();
    let mut frame = FrameEncoder::response(&mut bytes, Encoding::Json, 0, opaque);
    frame.remark(remark);
    frame.finish(0).unwrap();
    stream.write_all(&bytes).unwrap();
}

#[test]
fn sends_and_commits_reach_the_master_and_its_answers_the_client() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let (master, replica) = pair();
        let mut client = replica.connect_with(encoding);
        let key = properties(&[("UNIQ_KEY", "K\"1\\é")]);
        let sent = client.ask(SEND_MESSAGE_V2, &send_fields(&key), b"one");
        assert_eq!((sent.code, sent.number("queueOffset")), (response_code::SUCCESS, 0));
        assert_eq!(sent.field("transactionId"), "K\"1\\é");
        let body = batch(&[("two", ""), ("three", "")]);
        let sent = client.ask(SEND_BATCH_MESSAGE, &but(send_fields(""), &[("m", "true")]), &body);
        assert_eq!((sent.code, sent.number("queueOffset")), (response_code::SUCCESS, 1));
        client.send_oneway(SEND_MESSAGE_V2, &send_fields(""), b"four");
        let large = "x".repeat(60_000);
        client.put(&large);
        assert_eq!(master.bodies(TOPIC, 0), ["one", "two", "three", "four", &large]);
        assert_eq!(master.read(TOPIC, 0)[0].properties["UNIQ_KEY"], "K\"1\\é");

        let half = properties(&[("TRAN_MSG", "true"), ("PGROUP", PRODUCER_GROUP)]);
        assert_eq!(client.ask(SEND_MESSAGE_V2, &send_fields(&half), b"half").code, response_code::SUCCESS);
        let half = master.read("RMQ_SYS_TRANS_HALF_TOPIC", 0).remove(0);
        let end = vec![
            ("producerGroup", PRODUCER_GROUP.to_owned()),
            ("tranStateTableOffset", half.queue_offset.to_string()),
            ("commitLogOffset", half.physical_offset.to_string()),
            ("commitOrRollback", "8".to_owned()),
        ];
        assert_eq!(client.ask(END_TRANSACTION, &end, b"").code, response_code::SUCCESS);
        assert_eq!(master.bodies(TOPIC, 0)[5], "half");

        let group = but(queue_fields(), &[("consumerGroup", GROUP)]);
        let commit = but(group.clone(), &[("commitOffset", "2")]);
        assert_eq!(client.ask(UPDATE_CONSUMER_OFFSET, &commit, b"").code, response_code::SUCCESS);
        assert_eq!(master.connect().ask(QUERY_CONSUMER_OFFSET, &group, b"").number("offset"), 2);
        assert!(replica.broker().offsets.snapshot().is_empty(), "it comes back with the master's state");
        let refused = client.ask(SEND_MESSAGE_V2, &but(send_fields(""), &[("e", "99")]), b"m");
        assert_ne!(refused.code, response_code::SUCCESS, "refusals of the master come back too");
        assert!(!refused.remark.is_empty());
        assert_eq!(replica.store.end_offset(), 0);
    }
}

#[test]
fn messages_of_a_connection_stay_in_order() {
    let (master, replica) = pair();
    let mut clients: Vec<Client> = (0..6).map(|_| replica.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let mut bytes = Vec::new();
        for place in 0..15 {
            let body = format!("{number}:{place:02}");
            client.frame(&mut bytes, SEND_MESSAGE_V2, 0, &send_fields(""), body.as_bytes());
        }
        client.write(&bytes);
    }
    for client in &mut clients {
        (0..15).for_each(|_| assert_eq!(client.answer().code, response_code::SUCCESS));
    }
    let bodies = master.bodies(TOPIC, 0);
    for number in 0..6 {
        let own: Vec<&String> =
            bodies.iter().filter(|body| body.starts_with(&format!("{number}:"))).collect();
        assert_eq!(own.len(), 15);
        assert!(own.is_sorted(), "{own:?}");
    }
}

#[test]
fn a_request_that_crossed_is_relayed_with_all_its_parts() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let (master, replica) = pair();
        let mut client = replica.connect_with(encoding);
        let opaque = client.send(LOCK, &vec![("name", "välue\"".to_owned())], b"body");
        let crossed = replica.crossed();
        assert!(replica.listener.shared.relay_crossed(&crossed).unwrap());
        let arrived = master.crossed();
        assert_eq!(
            (arrived.code, arrived.version, arrived.language),
            (LOCK, crossed.version, crossed.language)
        );
        assert_eq!((arrived.encoding, &arrived.body[..]), (encoding, &b"body"[..]));
        let fields = arrived.fields().unwrap();
        assert_eq!(fields[0], ("name".to_owned(), "välue\"".to_owned()));
        assert_eq!(fields[1].0, "metaqRelayed");
        let large = Bytes::from(vec![7; 10_000]);
        arrived.respond(5, Some("why"), &[("found".to_owned(), "it".to_owned())], large.clone());
        let answer = client.answer();
        assert_eq!((answer.opaque, answer.code, answer.field("found")), (opaque, 5, "it"));
        assert_eq!((&answer.remark[..], &answer.body[..]), ("why", &large[..]));
        replica.listener.set_relay(None).unwrap();
        assert!(!replica.listener.shared.relay_crossed(&crossed).unwrap());
    }
}

#[test]
fn a_master_that_cannot_be_reached_is_named() {
    let replica = Plane::replica();
    // Bound and not listening: connections are refused, and no other test gets the port.
    let reserved = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    reserved.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let port = reserved.local_addr().unwrap().as_socket().unwrap().port();
    relay_to(&replica, port);
    let mut client = replica.connect();
    for _ in 0..2 {
        let answer = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"m");
        answer.refuses(
            response_code::SERVICE_NOT_AVAILABLE,
            &format!("cannot reach its master 127.0.0.1:{port}"),
        );
    }
    for bad in ["nowhere", ":10911", "host:", "host:x"] {
        let error = replica.listener.set_relay(Some(bad)).unwrap_err();
        assert!(error.to_string().contains(bad), "{error}");
    }
    let master = Plane::start();
    relay_to(&replica, master.listener.port());
    client.put("found");
}

#[test]
fn a_master_that_does_not_answer_leaves_the_outcome_open() {
    let replica = Plane::with(|setup| {
        setup.is_replica = true;
        setup.server.relay_timeout_ms = 50;
    });
    let master = FakeMaster::new();
    relay_to(&replica, master.port());
    let mut client = replica.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    let mut first = master.accept();
    let late = read_request(&mut first);
    client
        .answer()
        .refuses(response_code::SERVICE_NOT_AVAILABLE, "no answer within 50 ms (relay_timeout_ms)");
    let _the_link_is_closed = first.write_all(&[]).is_ok().then(|| respond(&mut first, late, "too late"));
    let opaque = client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    let mut second = master.accept();
    let request = read_request(&mut second);
    respond(&mut second, request, "in time");
    let answer = client.answer();
    // A slow machine may miss the deadline again, but the late answer is never taken for this one.
    assert_eq!(answer.opaque, opaque);
    assert!(answer.remark == "in time" || answer.remark.contains("may have been carried out"), "{answer:?}");
}

#[test]
fn a_broken_connection_is_opened_again() {
    let replica = Plane::replica();
    let master = FakeMaster::new();
    relay_to(&replica, master.port());
    let mut client = replica.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    let mut first = master.accept();
    read_request(&mut first);
    drop(first);
    client.answer().refuses(response_code::SERVICE_NOT_AVAILABLE, "may have been carried out");
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    let mut second = master.accept();
    let opaque = read_request(&mut second);
    // Requests of the master and answers that nobody waits for are left alone.
    let mut bytes = Vec::new();
    FrameEncoder::request(&mut bytes, Encoding::Json, 40, opaque, 0).finish(0).unwrap();
    second.write_all(&bytes).unwrap();
    respond(&mut second, opaque + 1, "not asked");
    respond(&mut second, opaque, "asked");
    assert_eq!(client.answer().remark, "asked");
    second.write_all(b"this is not a frame").unwrap();
    assert_eq!(second.read(&mut [0]).unwrap_or(0), 0, "the replica closes the connection");
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
    let mut third = master.accept();
    let opaque = read_request(&mut third);
    respond(&mut third, opaque, "third");
    assert_eq!(client.answer().remark, "third");
}

#[test]
fn a_former_master_answers_what_it_got_and_later_requests_go_to_the_new_one() {
    let replica = Plane::replica();
    let (former, master) = (FakeMaster::new(), Plane::start());
    relay_to(&replica, former.port());
    let mut client = replica.connect();
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"answered");
    let mut stream = former.accept();
    let opaque = read_request(&mut stream);
    relay_to(&replica, master.listener.port());
    client.put("found");
    respond(&mut stream, opaque, "by the former master");
    assert_eq!(client.answer().remark, "by the former master");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "then the replica closes the connection");
    // A former master that dies leaves the outcome open.
    relay_to(&replica, former.port());
    client.send(SEND_MESSAGE_V2, &send_fields(""), b"lost");
    let mut stream = former.accept();
    read_request(&mut stream);
    relay_to(&replica, master.listener.port());
    drop(stream);
    client.answer().refuses(response_code::SERVICE_NOT_AVAILABLE, "may have been carried out");
    replica.listener.set_relay(None).unwrap();
    let answer = client.ask(SEND_MESSAGE_V2, &send_fields(""), b"m");
    answer.refuses(response_code::SERVICE_NOT_AVAILABLE, "knows no master");
    assert_eq!(master.bodies(TOPIC, 0), ["found"]);
}

#[test]
fn no_request_goes_around_in_a_circle() {
    let (one, other) = (Plane::replica(), Plane::replica());
    relay_to(&one, other.listener.port());
    relay_to(&other, one.listener.port());
    let mut client = one.connect();
    for (code, fields) in [(SEND_MESSAGE_V2, send_fields("")), (UPDATE_CONSUMER_OFFSET, queue_fields())] {
        let answer = client.ask(code, &fields, b"m");
        answer.refuses(response_code::SERVICE_NOT_AVAILABLE, "this broker is not the master");
    }
}

#[test]
fn relayed_requests_are_bounded_in_number_and_bytes() {
    for by_bytes in [false, true] {
        let replica = Plane::with(|setup| {
            setup.is_replica = true;
            match by_bytes {
                false => setup.server.relay_requests_max = 1,
                true => setup.server.relay_bytes_max = 1_000,
            }
        });
        let master = FakeMaster::new();
        relay_to(&replica, master.port());
        let mut client = replica.connect();
        let first = client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
        let mut stream = master.accept();
        let opaque = read_request(&mut stream);
        let body = if by_bytes { vec![b'x'; 1_000] } else { b"m".to_vec() };
        let limit = if by_bytes { "relay_bytes_max" } else { "relay_requests_max" };
        client.ask(SEND_MESSAGE_V2, &send_fields(""), &body).refuses(response_code::SYSTEM_BUSY, limit);
        assert_eq!(client.ask(PULL_MESSAGE, &pull_fields(0), b"").code, response_code::PULL_NOT_FOUND);
        respond(&mut stream, opaque, "done");
        assert_eq!(client.answer().opaque, first);
        client.send(SEND_MESSAGE_V2, &send_fields(""), b"m");
        let opaque = read_request(&mut stream);
        respond(&mut stream, opaque, "there is room again");
        assert_eq!(client.answer().remark, "there is room again");
    }
}

#[test]
fn a_request_that_the_master_would_not_read_costs_nobody_else_the_connection() {
    let replica = Plane::with(|setup| {
        setup.is_replica = true;
        setup.server.relay_bytes_max = 16 << 20;
    });
    let fake = FakeMaster::new();
    relay_to(&replica, fake.port());
    let mut honest = replica.connect();
    let waiting = honest.send(SEND_MESSAGE_V2, &send_fields(""), b"honest");
    let mut link = fake.accept();
    let opaque = read_request(&mut link);
    // Each fourth connection takes the same link. A raw control character has one byte here and six in the copy, and a
    // header that just fits has no room for the mark of the relay.
    for (encoding, padding, length) in
        [(Encoding::Json, "~", 200_000), (Encoding::Binary, "p", (1 << 20) - 49)]
    {
        for _ in 0..4 {
            let mut stranger = replica.connect_with(encoding);
            let fields = vec![("b", TOPIC.to_owned()), ("z", padding.repeat(length))];
            let mut bytes = Vec::new();
            stranger.frame(&mut bytes, SEND_MESSAGE_V2, 0, &fields, b"");
            let header =
                bytes[8..].iter().map(|byte| if *byte == b'~' { 1 } else { *byte }).collect::<Vec<u8>>();
            stranger.write(&bytes[..8]);
            stranger.write(&header);
            stranger.answer().refuses(response_code::SYSTEM_ERROR, "[RELAY] it cannot be relayed: header of");
        }
    }
    respond(&mut link, opaque, "stored");
    let answer = honest.answer();
    assert_eq!((answer.opaque, &answer.remark[..]), (waiting, "stored"));
}

#[test]
fn one_address_cannot_use_up_what_may_be_relayed() {
    for by_bytes in [false, true] {
        let replica = Plane::with(|setup| {
            setup.is_replica = true;
            match by_bytes {
                false => setup.server.relay_requests_max = 4,
                true => setup.server.relay_bytes_max = 10_000,
            }
        });
        let fake = FakeMaster::new();
        relay_to(&replica, fake.port());
        let (mut stranger, mut again) = (replica.connect(), replica.connect());
        let body = vec![b'x'; if by_bytes { 1_500 } else { 1 }];
        for _ in 0..2 {
            stranger.send(SEND_MESSAGE_V2, &send_fields(""), &body);
        }
        stranger.expect_silence();
        let refused =
            again.ask(SEND_MESSAGE_V2, &send_fields(""), &vec![b'x'; if by_bytes { 3_000 } else { 1 }]);
        refused.refuses(response_code::SYSTEM_BUSY, "half of that for one address");
        let mut honest = Client::connect_from([127, 0, 0, 9], replica.listener.port());
        honest.send(SEND_MESSAGE_V2, &send_fields(""), &body);
        honest.expect_silence();
    }
}
