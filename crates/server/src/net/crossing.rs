//! The bounded way up: requests that the data plane does not answer itself wait here for Python's event loop.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use bytes::Bytes;
use metaq_wire::{Encoding, Frame, FrameEncoder, Header, WireError};
use parking_lot::Mutex;

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::output::Body;
use crate::net::peer::Peer;
use crate::net::route::Ask;
use crate::notice::Notice;

/// Memory that a request takes besides its bytes.
const CROSSED_BYTES: usize = 256;

/// A request that waits: for Python, for the master that it is relayed to, or for a new role. It owns its bytes.
pub struct Crossed {
    pub peer: Arc<Peer>,
    pub encoding: Encoding,
    header: Bytes,
    pub body: Bytes,
    pub code: i32,
    pub language: u8,
    pub version: i32,
    pub opaque: i32,
    pub oneway: bool,
    pub remark: Option<String>,
    /// By its peer's clock.
    since_ms: u64,
}

impl Crossed {
    pub fn new(peer: &Arc<Peer>, frame: &Frame<'_>, header: &Header<'_>) -> Self {
        Crossed::copy(peer, frame.encoding, frame.header, frame.body, header)
    }

    pub fn of(ask: &Ask<'_>) -> Self {
        Crossed::copy(ask.peer, ask.encoding, ask.header_bytes, ask.body, ask.header)
    }

    fn copy(
        peer: &Arc<Peer>,
        encoding: Encoding,
        header_bytes: &[u8],
        body: &[u8],
        header: &Header<'_>,
    ) -> Self {
        peer.memory.add(CROSSED_BYTES + header_bytes.len() + body.len());
        Crossed {
            peer: Arc::clone(peer),
            encoding,
            header: Bytes::copy_from_slice(header_bytes),
            body: Bytes::copy_from_slice(body),
            code: header.code,
            language: header.language,
            version: header.version,
            opaque: header.opaque,
            oneway: header.is_oneway(),
            remark: header.remark.as_ref().map(ToString::to_string),
            since_ms: peer.now_ms(),
        }
    }

    /// The request as the hot handlers see it; `header` is its own, parsed.
    pub fn ask<'a>(&'a self, header: &'a Header<'a>, again: bool) -> Ask<'a> {
        let (peer, encoding, header_bytes, body) =
            (&self.peer, self.encoding, &self.header[..], &self.body[..]);
        Ask { peer, encoding, header, header_bytes, body, again }
    }

    pub fn header(&self) -> Result<Header<'_>, WireError> {
        Header::parse(self.encoding, &self.header)
    }

    pub fn fields(&self) -> Result<Vec<(String, String)>, WireError> {
        let header = self.header()?;
        header
            .fields()
            .map(|field| field.map(|(name, value)| (name.into_owned(), value.into_owned())))
            .collect()
    }

    /// Answers the request, unless it is a oneway or its peer has left.
    pub fn respond(&self, code: i32, remark: Option<&str>, fields: &[(String, String)], body: Bytes) {
        if self.oneway {
            return;
        }
        let mut answers = Answers::default();
        let fill = |frame: &mut FrameEncoder<'_>| {
            for (name, value) in fields {
                frame.field(name, value);
            }
        };
        answers.add_with_body(self.encoding, self.opaque, code, remark, fill, Body::Owned(body));
        let _gone = self.peer.post(answers);
    }

    pub(crate) fn len(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

impl Drop for Crossed {
    fn drop(&mut self) {
        self.peer.memory.remove(CROSSED_BYTES + self.len());
    }
}

/// An event for Python.
pub enum Event {
    Request(Crossed),
    /// A client's response to a request of ours.
    Answer(Crossed),
    Closed(Arc<Peer>),
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    requests: usize,
    bytes: usize,
}

/// The queue and the descriptor that is readable while it holds something.
pub struct Crossing {
    waiting: Mutex<Waiting>,
    notice: Notice,
    requests_max: usize,
    bytes_max: usize,
    age_ms_max: u64,
}

impl Crossing {
    pub fn new(requests_max: usize, bytes_max: usize, age_ms_max: u64) -> std::io::Result<Self> {
        let notice = Notice::new()?;
        Ok(Crossing { waiting: Mutex::default(), notice, requests_max, bytes_max, age_ms_max })
    }

    pub fn fileno(&self) -> RawFd {
        self.notice.fileno()
    }

    /// Queues an event. A request or answer past the limits is refused; the end of a connection never is.
    pub fn offer(&self, event: Event) -> Result<(), Event> {
        let size = match &event {
            Event::Request(crossed) | Event::Answer(crossed) => Some(crossed.len()),
            Event::Closed(_) => None,
        };
        let mut waiting = self.waiting.lock();
        if let Some(size) = size {
            if waiting.requests >= self.requests_max || waiting.bytes + size > self.bytes_max {
                return Err(event);
            }
            waiting.requests += 1;
            waiting.bytes += size;
        }
        waiting.events.push_back(event);
        let first = waiting.events.len() == 1;
        drop(waiting);
        if first {
            self.notice.set();
        }
        Ok(())
    }

    /// Takes up to `count_max` events, oldest first; the descriptor stays readable while more wait. Requests that have
    /// waited too long are refused here: their sender has given up, and may have asked elsewhere.
    pub fn drain(&self, count_max: usize) -> Vec<Event> {
        let mut waiting = self.waiting.lock();
        let count = count_max.min(waiting.events.len());
        let taken: Vec<Event> = waiting.events.drain(..count).collect();
        for event in &taken {
            if let Event::Request(crossed) | Event::Answer(crossed) = event {
                waiting.requests -= 1;
                waiting.bytes -= crossed.len();
            }
        }
        if waiting.events.is_empty() {
            self.notice.clear();
        }
        drop(waiting);
        taken.into_iter().filter(|event| !self.answer_late(event)).collect()
    }

    /// Refuses a request that has waited too long. Nobody repeats a oneway, so a oneway is never late.
    fn answer_late(&self, event: &Event) -> bool {
        let Event::Request(crossed) = event else {
            return false;
        };
        let age_ms = crossed.peer.now_ms().saturating_sub(crossed.since_ms);
        if crossed.oneway || age_ms <= self.age_ms_max {
            return false;
        }
        crossed.peer.counts.refused.add(1);
        let remark = format!(
            "[TIMEOUT_CLEAN_QUEUE] the request waited {age_ms} ms for the broker's control plane; the limit is {} (crossing_age_ms_max)",
            self.age_ms_max
        );
        crossed.respond(response_code::SYSTEM_BUSY, Some(&remark), &[], Bytes::new());
        true
    }
}
