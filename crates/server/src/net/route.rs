//! One frame, one decision: a hot request is answered here, everything else crosses to Python.

use std::sync::Arc;

use bytes::Bytes;
use metaq_wire::{Encoding, Frame, Header, WireError};

use crate::broker::Broker;
use crate::codes::{HotRequest, hot_request, is_reply, request_code, response_code};
use crate::metrics::latency::Exchange;
use crate::net::answers::Answers;
use crate::net::crossing::{Crossed, Event};
use crate::net::listener::Shared;
use crate::net::peer::Peer;

/// Headers carry properties and filters, which have limits of their own far below. Reading one of this size takes about a
/// millisecond.
pub(crate) const HEADER_BYTES_MAX: usize = 1024 * 1024;

/// Said while a broker's listener has no plane.
const NO_PLANE: &str = "[ROLE] this broker serves no messages now: it starts, stops or changes its role; try again later or ask another broker";

/// Said by a replica that knows no master.
const NO_MASTER: &str =
    "[ROLE] this broker is a replica and knows no master now; try again later or ask another broker";

/// A request as the hot handlers see it.
pub struct Ask<'a> {
    pub peer: &'a Arc<Peer>,
    pub encoding: Encoding,
    pub header: &'a Header<'a>,
    pub header_bytes: &'a [u8],
    pub body: &'a [u8],
    /// Python has seen it and handed it back, so it must be answered now.
    pub again: bool,
}

/// Why a request is not served: a response code, and a remark for the person who reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub remark: String,
}

impl Refusal {
    pub fn new(code: i32, remark: impl Into<String>) -> Self {
        Refusal { code, remark: remark.into() }
    }
}

/// The outcome of a request.
#[derive(PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The policy does not cover it: Python decides.
    Cross,
}

impl Ask<'_> {
    pub fn refuse(&self, answers: &mut Answers, code: i32, remark: &str) -> Outcome {
        self.peer.counts.refused.add(1);
        if !self.header.is_oneway() {
            answers.add(self.encoding, self.header.opaque, code, remark, &[]);
        }
        Outcome::Done
    }

    pub fn refuse_with(&self, answers: &mut Answers, refusal: &Refusal) -> Outcome {
        self.refuse(answers, refusal.code, &refusal.remark)
    }

    /// Crosses for a resource that the policy does not know: Python may know or create it. The second time, it does not
    /// exist.
    pub fn unknown(&self, answers: &mut Answers, code: i32, what: &str, name: &str) -> Outcome {
        if !self.again {
            return Outcome::Cross;
        }
        self.refuse(answers, code, &format!("{what}[{name}] does not exist; create it first"))
    }

    pub fn offset(&self, answers: &mut Answers, value: i64) -> Outcome {
        self.offset_with(answers, value, "")
    }

    pub fn offset_with(&self, answers: &mut Answers, value: i64, remark: &str) -> Outcome {
        self.succeed(answers, remark, &[("offset", value)])
    }

    pub fn done(&self, answers: &mut Answers) -> Outcome {
        self.done_with(answers, "")
    }

    pub fn done_with(&self, answers: &mut Answers, remark: &str) -> Outcome {
        self.succeed(answers, remark, &[])
    }

    fn succeed(&self, answers: &mut Answers, remark: &str, fields: &[(&str, i64)]) -> Outcome {
        if !self.header.is_oneway() {
            answers.add(self.encoding, self.header.opaque, response_code::SUCCESS, remark, fields);
        }
        Outcome::Done
    }
}

/// Whether only a master can carry the request out: it appends to the log or commits an offset.
fn changes_state(ask: &Ask<'_>) -> bool {
    match hot_request(ask.header.code) {
        Some(HotRequest::Send | HotRequest::EndTransaction) => true,
        Some(HotRequest::Offsets) => ask.header.code == request_code::UPDATE_CONSUMER_OFFSET,
        Some(HotRequest::Pull) => false,
        None => ask.again && is_reply(ask.header.code),
    }
}

impl Shared {
    /// Handles one frame of a connection. After an error the stream cannot be trusted any further.
    pub(crate) fn handle(
        &self,
        broker: Option<&Arc<Broker>>,
        peer: &Arc<Peer>,
        frame: &Frame<'_>,
        answers: &mut Answers,
    ) -> Result<(), WireError> {
        let length = frame.header.len();
        if length > HEADER_BYTES_MAX {
            return Err(WireError::HeaderTooLong { length, limit: HEADER_BYTES_MAX });
        }
        let header = Header::parse(frame.encoding, frame.header)?;
        peer.counts.requests.add(1);
        if header.is_response() {
            // If there is no room for the answer, its request times out like a lost one.
            if let Some(answer) = Crossed::new(peer, frame, &header) {
                let _dropped = self.crossing.offer(Event::Answer(answer));
            }
            return Ok(());
        }
        let (encoding, header_bytes, body) = (frame.encoding, frame.header, frame.body);
        let ask = Ask { peer, encoding, header: &header, header_bytes, body, again: false };
        if self.handle_hot(broker, &ask, answers) == Outcome::Done {
            answers.note_answered(header.code);
            return Ok(());
        }
        self.cross(&ask, answers);
        Ok(())
    }

    /// Handles a request that Python handed back, and posts the answer.
    pub fn handle_again(&self, crossed: &Crossed) -> Result<(), WireError> {
        let header = crossed.header()?;
        self.handle_apart(&crossed.ask(&header, true), Shared::handle_hot);
        Ok(())
    }

    /// Answers a request as Python decided.
    pub fn respond(
        &self,
        crossed: &Crossed,
        code: i32,
        remark: Option<&str>,
        fields: &[(String, String)],
        body: Bytes,
    ) {
        crossed.respond(code, remark, fields, body);
        if let Some(plane) = self.plane().as_ref() {
            let (request_code, response_code) = (crossed.code, code);
            let exchange = Exchange { request_code, response_code, is_long_polling: false };
            plane.broker.latencies.record(exchange, crossed.elapsed_ms());
        }
    }

    /// Handles a request that was kept back, and posts the answer.
    pub(crate) fn handle_held(&self, held: &Crossed, again: bool) {
        // Its header was sound when it was kept.
        if let Ok(header) = held.header() {
            self.handle_apart(&held.ask(&header, again), Shared::answer_hot);
        }
    }

    /// Handles a request in a pass of its own, and posts the answer.
    fn handle_apart(
        &self,
        ask: &Ask<'_>,
        handle: fn(&Shared, Option<&Arc<Broker>>, &Ask<'_>, &mut Answers) -> Outcome,
    ) {
        let mut answers = Answers::default();
        let plane = self.plane();
        let broker = plane.as_ref().map(|plane| &plane.broker);
        if handle(self, broker, ask, &mut answers) == Outcome::Cross {
            self.cross(ask, &mut answers);
        }
        if let Some(broker) = broker {
            broker.finish_pass(&mut answers);
        }
        let _gone = ask.peer.post(answers);
    }

    /// Hands a request up to Python, unless it comes from there.
    fn cross(&self, ask: &Ask<'_>, answers: &mut Answers) {
        if ask.again {
            let remark = "this request is not one the data plane can answer";
            ask.refuse(answers, response_code::SYSTEM_ERROR, remark);
            return;
        }
        ask.peer.counts.crossed.add(1);
        let Some(crossed) = Crossed::of(ask) else {
            ask.refuse(answers, response_code::SYSTEM_BUSY, &ask.peer.memory.no_room());
            return;
        };
        if let Err(overload) = self.crossing.offer(Event::Request(crossed)) {
            ask.refuse(answers, response_code::SYSTEM_BUSY, overload.remark());
        }
    }

    /// Passes a request that Python has seen on to the master; false if there is none.
    pub fn relay_crossed(&self, crossed: &Crossed) -> Result<bool, WireError> {
        let header = crossed.header()?;
        Ok(self.relay(&crossed.ask(&header, true)))
    }

    /// Passes a request on to the master; false if there is none.
    fn relay(&self, ask: &Ask<'_>) -> bool {
        let Some(runtime) = self.runtime.get().filter(|_| self.relay.has_master()) else {
            return false;
        };
        let Some(request) = Crossed::of(ask) else {
            let mut answers = Answers::default();
            ask.refuse(&mut answers, response_code::SYSTEM_BUSY, &ask.peer.memory.no_room());
            let _gone = ask.peer.post(answers);
            return true;
        };
        self.relay.pass_on(runtime, request).is_ok()
    }

    /// Answers a hot request, unless a switch of the master keeps it back.
    fn handle_hot(&self, broker: Option<&Arc<Broker>>, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        if self.held_appends.is_on() && changes_state(ask) {
            if let Some(outcome) = self.held_appends.keep(ask, answers) {
                return outcome;
            }
        }
        self.answer_hot(broker, ask, answers)
    }

    fn answer_hot(&self, broker: Option<&Arc<Broker>>, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        match broker {
            Some(broker) => self.answer_on(broker, ask, answers),
            None => self.answer_without_plane(ask, answers),
        }
    }

    #[cold]
    fn answer_without_plane(&self, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        if !self.serves_broker() || !(ask.again || hot_request(ask.header.code).is_some()) {
            return Outcome::Cross;
        }
        // A plane that was attached after this pass began may have handled earlier requests that were kept back.
        let plane = self.plane();
        let Some(plane) = plane.as_ref() else {
            return ask.refuse(answers, response_code::SERVICE_NOT_AVAILABLE, NO_PLANE);
        };
        let outcome = self.answer_on(&plane.broker, ask, answers);
        plane.broker.finish_pass(answers);
        outcome
    }

    fn answer_on(&self, broker: &Arc<Broker>, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let hot = hot_request(ask.header.code);
        if broker.is_replica {
            return self.answer_on_replica(broker, hot, ask, answers);
        }
        match hot {
            Some(HotRequest::Send) => broker.sends.handle(ask, answers),
            Some(HotRequest::Pull) => broker.pulls.handle(ask, answers),
            Some(HotRequest::Offsets) => broker.offset_requests.handle(ask, answers),
            Some(HotRequest::EndTransaction) => broker.transactions.handle_end(ask, answers),
            None if ask.again && is_reply(ask.header.code) => broker.sends.handle(ask, answers),
            None => Outcome::Cross,
        }
    }

    /// Serves reads from the replica's own copy and relays the rest to the master. Without a master, committed offsets
    /// wait in the replica's own table, and only one that stands in for its master answers them with success.
    fn answer_on_replica(
        &self,
        broker: &Arc<Broker>,
        hot: Option<HotRequest>,
        ask: &Ask<'_>,
        answers: &mut Answers,
    ) -> Outcome {
        if changes_state(ask) && self.relay(ask) {
            return Outcome::Done;
        }
        match hot {
            Some(HotRequest::Pull) => broker.pulls.handle(ask, answers),
            Some(HotRequest::Offsets) => broker.offset_requests.handle(ask, answers),
            Some(HotRequest::Send | HotRequest::EndTransaction) => {
                ask.refuse(answers, response_code::SERVICE_NOT_AVAILABLE, NO_MASTER)
            }
            None if ask.again && is_reply(ask.header.code) => {
                ask.refuse(answers, response_code::SERVICE_NOT_AVAILABLE, NO_MASTER)
            }
            None => Outcome::Cross,
        }
    }
}
