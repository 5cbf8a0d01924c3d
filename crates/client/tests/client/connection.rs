//! Requests over real sockets: matched by their number, timed out one by one, and never confused by a peer.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use metaq_client::{ClientError, Network, NetworkSettings, Reply, Request};
use metaq_wire::{Encoding, FrameEncoder};
use proptest::prelude::*;

use crate::support::{Act, Asked, NETWORK, Server, answer, eventually};

const LONG: Duration = Duration::from_secs(60);

fn network() -> Arc<Network> {
    Network::start(NETWORK).unwrap()
}

/// Sends a request from the network thread and brings the reply here.
fn call(
    network: &Arc<Network>,
    address: &str,
    request: Request,
    patience: Duration,
) -> mpsc::Receiver<Result<Reply, ClientError>> {
    let (sender, receiver) = mpsc::channel();
    let (network_there, address) = (Arc::clone(network), address.to_owned());
    network.spawn(async move {
        let _gone = sender.send(network_there.call(&address, request, patience).await);
    });
    receiver
}

fn echo(asked: &Asked) -> Vec<Act> {
    vec![Act::Answer { code: 0, fields: vec![("n", asked.fields["n"].clone())], body: asked.body.clone() }]
}

#[test]
fn many_requests_are_under_way_at_once_and_find_their_answers() {
    let server = Server::start(echo);
    let network = network();
    let body = |number: u8| Bytes::from(vec![number; 70_000]);
    let waiting: Vec<_> = (0..100)
        .map(|number| {
            let request = Request::new(10).number("n", i64::from(number)).body(body(number));
            call(&network, &server.address, request, LONG)
        })
        .collect();
    for (number, receiver) in (0..).zip(waiting) {
        let reply = receiver.recv().unwrap().unwrap();
        assert_eq!(reply.header().unwrap().field("n").unwrap().unwrap(), number.to_string());
        assert_eq!(reply.body, body(number));
    }
    assert!(server.asked().iter().all(|asked| asked.connection == 0), "one connection is enough");
}

#[test]
fn each_request_has_its_own_time() {
    let server = Server::start(|asked| if asked.code == 11 { vec![Act::Silence] } else { vec![Act::ok()] });
    let network = network();
    // It is connected: the time is for the answer alone.
    call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap();
    let held = call(&network, &server.address, Request::new(11), LONG);
    let lost = call(&network, &server.address, Request::new(11), Duration::from_millis(30));
    assert!(matches!(lost.recv().unwrap(), Err(ClientError::Timeout { code: 11, .. })));
    // The connection goes on, and so does the other request.
    assert_eq!(call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap().code, 0);
    assert!(held.try_recv().is_err());
    server.cut();
    assert!(matches!(held.recv().unwrap(), Err(ClientError::Ended { .. })));
}

#[test]
fn a_connection_that_was_cut_is_opened_again_when_it_is_needed() {
    let server = Server::start(|_| vec![Act::ok()]);
    let network = network();
    for round in 0..3 {
        eventually(|| call(&network, &server.address, Request::new(10), LONG).recv().unwrap().is_ok());
        assert_eq!(server.asked().last().unwrap().connection, round);
        // The next request may find out about it by its own failure.
        server.cut();
    }
}

#[test]
fn nobody_there_is_an_error_and_no_wait() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let network = network();
    let outcome = call(&network, &unused, Request::new(10), LONG).recv().unwrap();
    assert!(matches!(outcome, Err(ClientError::Connect { .. })));
    let outcome = call(&network, "no address", Request::new(10), LONG).recv().unwrap();
    assert!(matches!(outcome, Err(ClientError::Connect { .. })));
}

#[test]
fn an_answer_to_nothing_is_passed_over() {
    let server =
        Server::start(|asked| vec![Act::Raw(answer(asked.opaque + 77, 1, &[], b"wrong")), Act::ok()]);
    let network = network();
    let reply = call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap();
    assert_eq!((reply.code, reply.body.len()), (0, 0));
}

#[test]
fn a_peer_that_speaks_something_else_is_left() {
    let wrong: [(&[u8], &str); 5] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP/1"),
        (&[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0A], "speaks TLS"),
        (&[0x7F; 64], "no valid frame"),
        (&[0, 0, 0, 8, 1, 0, 0, 4, 9, 9, 9, 9], "no valid frame"),
        (b"\r\n\r\n\0\r\nQUIT\n", "speaks the PROXY protocol"),
    ];
    for (bytes, expected) in wrong {
        let server = Server::start(move |_| vec![Act::Raw(bytes.to_vec())]);
        let network = network();
        let outcome = call(&network, &server.address, Request::new(10), LONG).recv().unwrap();
        let Err(ClientError::Ended { reason, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn only_the_first_bytes_say_what_a_peer_speaks() {
    let server = Server::start(|asked| match asked.code {
        10 => vec![Act::ok()],
        _ => vec![Act::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())],
    });
    let network = network();
    call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap();
    let outcome = call(&network, &server.address, Request::new(11), LONG).recv().unwrap();
    let Err(ClientError::Ended { reason, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("no valid frame"), "{reason}");
}

#[test]
fn a_frame_past_the_limit_is_not_waited_for() {
    let server = Server::start(|_| vec![Act::Answer { code: 0, fields: vec![], body: vec![0; 5000] }]);
    let settings = NetworkSettings { frame_bytes_max: 4096, ..NETWORK };
    let network = Network::start(settings).unwrap();
    let outcome = call(&network, &server.address, Request::new(10), LONG).recv().unwrap();
    assert!(matches!(outcome, Err(ClientError::Ended { .. })));
}

#[test]
fn what_a_broker_asks_here_is_refused() {
    let server = Server::start(|_| vec![Act::ok()]);
    let network = network();
    call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap();
    for (code, opaque, flag) in [(40, 5, 2), (220, 6, 0)] {
        let mut out = Vec::new();
        FrameEncoder::request(&mut out, Encoding::Json, code, opaque, flag).finish(0).unwrap();
        server.say(&out);
    }
    eventually(|| server.asked().len() == 2);
    let refusal = &server.asked()[1];
    assert_eq!((refusal.code, refusal.opaque), (3, 6), "only what wants an answer gets one");
    call(&network, &server.address, Request::new(10), LONG).recv().unwrap().unwrap();
}

#[test]
fn what_nobody_answers_arrives() {
    let server = Server::start(|_| vec![Act::Silence]);
    let network = network();
    let (there, address) = (Arc::clone(&network), server.address.clone());
    network.spawn(async move { there.send_oneway(&address, Request::new(15).number("n", 1)).await.unwrap() });
    eventually(|| server.asked().len() == 1);
}

#[test]
fn the_end_is_quick_while_requests_wait() {
    let server = Server::start(|_| vec![Act::Silence]);
    let network = network();
    let waiting = call(&network, &server.address, Request::new(11), LONG);
    eventually(|| server.asked().len() == 1);
    network.close();
    network.close();
    assert!(waiting.recv().is_err(), "its task was dropped");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a peer says, a request has an end and the client goes on.
    #[test]
    fn garbage_never_hangs_or_panics(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let server = Server::start(move |asked| match asked.code {
            10 => vec![Act::Raw(bytes.clone()), Act::Close],
            _ => vec![Act::ok()],
        });
        let network = network();
        prop_assert!(call(&network, &server.address, Request::new(10), LONG).recv().unwrap().is_err());
        let after = call(&network, &server.address, Request::new(11), LONG).recv().unwrap();
        prop_assert_eq!(after.unwrap().code, 0);
    }
}
