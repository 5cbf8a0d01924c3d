//! One frame, one decision: a hot request is answered here, everything else crosses to Python.

use std::sync::Arc;

use metaq_wire::{Encoding, Frame, Header, WireError};

use crate::broker::Broker;
use crate::codes::{HotRequest, hot_request, is_reply, response_code};
use crate::net::answers::Answers;
use crate::net::crossing::{Crossed, Event};
use crate::net::listener::Shared;
use crate::net::peer::Peer;

/// Said while a broker's listener has no plane.
const NO_PLANE: &str = "[ROLE] this broker serves no messages now: it starts, stops or changes its role; try again later or ask another broker";

/// A request as the hot handlers see it.
pub struct Ask<'a> {
    pub peer: &'a Arc<Peer>,
    pub encoding: Encoding,
    pub header: &'a Header<'a>,
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
        if !self.header.is_oneway() {
            answers.add(self.encoding, self.header.opaque, response_code::SUCCESS, "", &[("offset", value)]);
        }
        Outcome::Done
    }

    pub fn done(&self, answers: &mut Answers) -> Outcome {
        if !self.header.is_oneway() {
            answers.add(self.encoding, self.header.opaque, response_code::SUCCESS, "", &[]);
        }
        Outcome::Done
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
        let header = Header::parse(frame.encoding, frame.header)?;
        peer.counts.requests.add(1);
        if header.is_response() {
            // If there is no room for the answer, its request times out like a lost one.
            let _dropped = self.crossing.offer(Event::Answer(Crossed::new(peer, frame, &header)));
            return Ok(());
        }
        let ask = Ask { peer, encoding: frame.encoding, header: &header, body: frame.body, again: false };
        if self.handle_hot(broker, &ask, answers) == Outcome::Done {
            return Ok(());
        }
        peer.counts.crossed.add(1);
        if self.crossing.offer(Event::Request(Crossed::new(peer, frame, &header))).is_err() {
            let remark = "[OVERLOAD] too many requests wait for the broker's control plane; try again later";
            ask.refuse(answers, response_code::SYSTEM_BUSY, remark);
        }
        Ok(())
    }

    /// Handles a request that Python handed back, and posts the answer.
    pub fn handle_again(&self, crossed: &Crossed) -> Result<(), WireError> {
        let header = crossed.header()?;
        let ask = Ask {
            peer: &crossed.peer,
            encoding: crossed.encoding,
            header: &header,
            body: &crossed.body,
            again: true,
        };
        let mut answers = Answers::default();
        let plane = self.plane();
        let broker = plane.as_ref().map(|plane| &plane.broker);
        if self.handle_hot(broker, &ask, &mut answers) == Outcome::Cross {
            ask.refuse(
                &mut answers,
                response_code::SYSTEM_ERROR,
                "this request is not one the data plane can answer",
            );
        }
        if let Some(broker) = broker {
            broker.finish_pass(&mut answers);
        }
        let _gone = crossed.peer.post(answers);
        Ok(())
    }

    fn handle_hot(&self, broker: Option<&Arc<Broker>>, ask: &Ask<'_>, answers: &mut Answers) -> Outcome {
        let hot = hot_request(ask.header.code);
        let Some(broker) = broker else {
            if self.serves_broker() && (ask.again || hot.is_some()) {
                return ask.refuse(answers, response_code::SERVICE_NOT_AVAILABLE, NO_PLANE);
            }
            return Outcome::Cross;
        };
        match hot {
            Some(HotRequest::Send) => broker.sends.handle(ask, answers),
            Some(HotRequest::Pull) => broker.pulls.handle(ask, answers),
            Some(HotRequest::Offsets) => broker.offset_requests.handle(ask, answers),
            Some(HotRequest::EndTransaction) => broker.transactions.handle_end(ask, answers),
            None if ask.again && is_reply(ask.header.code) => broker.sends.handle(ask, answers),
            None => Outcome::Cross,
        }
    }
}
