//! The bounded way up: requests that the data plane does not answer itself wait here for Python's event loop.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use metaq_wire::{Encoding, Frame, FrameEncoder, Header, WireError};
use parking_lot::Mutex;

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::by_network::Loads;
use crate::net::output::Body;
use crate::net::peer::Peer;
use crate::net::route::Ask;
use crate::notice::Notice;
use crate::transaction::shares::NameKey;

/// Memory that a request takes besides its bytes.
const CROSSED_BYTES: usize = 256;

/// Fields of a header that Python reads.
const FIELDS_MAX: usize = 256;

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
    /// Copies a request or an answer, if the budget of all connections has room for it.
    pub fn new(peer: &Arc<Peer>, frame: &Frame<'_>, header: &Header<'_>) -> Option<Self> {
        Crossed::copy(peer, frame.encoding, frame.header, frame.body, header)
    }

    pub fn of(ask: &Ask<'_>) -> Option<Self> {
        Crossed::copy(ask.peer, ask.encoding, ask.header_bytes, ask.body, ask.header)
    }

    fn copy(
        peer: &Arc<Peer>,
        encoding: Encoding,
        header_bytes: &[u8],
        body: &[u8],
        header: &Header<'_>,
    ) -> Option<Self> {
        let has_room = peer.memory.add(CROSSED_BYTES + header_bytes.len() + body.len());
        has_room.then(|| Crossed {
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
        })
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

    /// The fields for Python. Every command has far fewer than the limit.
    pub fn fields(&self) -> Result<Vec<(String, String)>, WireError> {
        let header = self.header()?;
        let mut fields = Vec::new();
        for field in header.fields() {
            let (name, value) = field?;
            if fields.len() == FIELDS_MAX {
                return Err(WireError::TooManyFields(FIELDS_MAX));
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        Ok(fields)
    }

    /// The time since it arrived.
    pub fn elapsed_ms(&self) -> u64 {
        self.peer.now_ms().saturating_sub(self.since_ms)
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

/// A connection of which nothing waits may always add a request of this size: others cannot take all the room.
const GUARANTEED_BYTES: usize = 4 * 1024;

/// The connections that have a turn. Addresses take turns, and so do the connections of each.
#[derive(Default)]
struct Turns {
    networks: VecDeque<NameKey>,
    of_network: HashMap<NameKey, VecDeque<u64>, RandomState>,
}

impl Turns {
    fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    fn add(&mut self, network: NameKey, connection: u64) {
        let connections = self.of_network.entry(network).or_default();
        if connections.is_empty() {
            self.networks.push_back(network);
        }
        connections.push_back(connection);
    }

    fn next(&mut self) -> Option<u64> {
        let network = self.networks.pop_front()?;
        let connections = self.of_network.get_mut(&network)?;
        let next = connections.pop_front();
        if connections.is_empty() {
            self.of_network.remove(&network);
        } else {
            self.networks.push_back(network);
        }
        next
    }
}

/// The events of one connection, oldest first.
#[derive(Default)]
struct Line {
    /// The address of the connection. It is set with the first event.
    network: NameKey,
    events: VecDeque<Event>,
    requests: usize,
    bytes: usize,
    /// Python has enough requests of this connection under way: the others wait here.
    paused: bool,
    /// The connection has closed, and Python does not know yet: the line cannot be paused any more.
    ended: bool,
    /// It is among the turns.
    has_turn: bool,
}

#[derive(Default)]
struct Waiting {
    /// By connection. A line that is empty and not paused is removed.
    lines: HashMap<u64, Line, RandomState>,
    /// The connections that are paused since they got their turn are passed over.
    turns: Turns,
    loads: Loads,
}

/// The limits of what waits for Python.
#[derive(Debug, Clone)]
pub struct CrossingLimits {
    pub requests_max: usize,
    pub bytes_max: usize,
    pub requests_per_connection_max: usize,
    pub bytes_per_connection_max: usize,
    pub age_ms_max: u64,
}

/// The limit that refused an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    Everybody,
    Address,
    Connection,
}

impl Overload {
    pub fn remark(self) -> &'static str {
        match self {
            Overload::Everybody => {
                "[OVERLOAD] too many requests wait for the broker's control plane; try again later"
            }
            Overload::Address => {
                "[OVERLOAD] too many requests of this address wait for the broker's control plane; one address may have half of crossing_requests_max and crossing_bytes_max; try again later"
            }
            Overload::Connection => {
                "[OVERLOAD] too many requests of this connection wait for the broker's control plane; wait for their answers (crossing_requests_per_connection_max, crossing_bytes_per_connection_max)"
            }
        }
    }
}

/// The waiting events, one line for each connection, and the descriptor that is readable while one of them has its turn.
/// Addresses take turns, and so do the connections of each: one that asks for much delays itself and nobody else.
pub struct Crossing {
    waiting: Mutex<Waiting>,
    notice: Notice,
    limits: CrossingLimits,
}

impl Crossing {
    pub fn new(limits: CrossingLimits) -> std::io::Result<Self> {
        Ok(Crossing { waiting: Mutex::default(), notice: Notice::new()?, limits })
    }

    pub fn fileno(&self) -> RawFd {
        self.notice.fileno()
    }

    /// Queues an event. A request or answer past the limits is refused; the end of a connection never is. Nobody reads
    /// the answers of a connection that has ended, so only its oneway requests are still done.
    pub fn offer(&self, event: Event) -> Result<(), Overload> {
        // Dropped after the lock is given back.
        let mut dropped = Vec::new();
        let mut waiting = self.waiting.lock();
        let (peer, size) = match &event {
            Event::Request(crossed) | Event::Answer(crossed) => (&crossed.peer, Some(crossed.len())),
            Event::Closed(peer) => (peer, None),
        };
        let (id, network) = (peer.id, peer.network);
        if let Some(size) = size {
            self.check(&waiting, peer, size)?;
            waiting.loads.count(network, size);
        }
        if size.is_none() {
            dropped = waiting.end_line(id);
        }
        let Waiting { lines, turns, .. } = &mut *waiting;
        let line = lines.entry(id).or_default();
        line.network = network;
        line.requests += usize::from(size.is_some());
        line.bytes += size.unwrap_or(0);
        line.events.push_back(event);
        if line.wants_turn() {
            line.has_turn = true;
            if turns.is_empty() {
                self.notice.set();
            }
            turns.add(network, id);
        }
        drop(waiting);
        drop(dropped);
        Ok(())
    }

    fn check(&self, waiting: &Waiting, peer: &Peer, size: usize) -> Result<(), Overload> {
        let limits = &self.limits;
        let line = waiting.lines.get(&peer.id).filter(|line| line.requests > 0);
        let is_waiting = line.is_some();
        // The limits of a connection let any single frame cross, however large.
        if let Some(line) = line {
            if line.requests >= limits.requests_per_connection_max
                || line.bytes + size > limits.bytes_per_connection_max
            {
                return Err(Overload::Connection);
            }
        }
        if !is_waiting && size <= GUARANTEED_BYTES {
            return Ok(());
        }
        let CrossingLimits { requests_max, bytes_max, .. } = *limits;
        if !waiting.loads.fits(size, requests_max, bytes_max) {
            return Err(Overload::Everybody);
        }
        let has_share = waiting.loads.has_share(peer.network, size, requests_max, bytes_max);
        if has_share { Ok(()) } else { Err(Overload::Address) }
    }

    /// Takes up to `count_max` events: one of each address in turn, the oldest of the connection whose turn it is. The descriptor stays readable
    /// while more can be taken. Requests that have waited too long are refused here: their sender has given up, and may
    /// have asked elsewhere.
    pub fn drain(&self, count_max: usize) -> Vec<Event> {
        let mut taken = Vec::new();
        let mut waiting = self.waiting.lock();
        while taken.len() < count_max {
            let Some(event) = waiting.take_next() else { break };
            taken.push(event);
        }
        if waiting.turns.is_empty() {
            self.notice.clear();
        }
        drop(waiting);
        taken.into_iter().filter(|event| !self.answer_late(event)).collect()
    }

    /// Lets the events of a connection wait, or lets them be taken again.
    pub fn pause(&self, id: u64, paused: bool) {
        let mut waiting = self.waiting.lock();
        let Waiting { lines, turns, .. } = &mut *waiting;
        let line = lines.entry(id).or_default();
        line.paused = paused && !line.ended;
        if line.wants_turn() {
            line.has_turn = true;
            turns.add(line.network, id);
            self.notice.set();
        } else if line.events.is_empty() && !line.paused {
            lines.remove(&id);
        }
    }

    /// Refuses a request that has waited too long. Nobody repeats a oneway, so a oneway is never late.
    fn answer_late(&self, event: &Event) -> bool {
        let Event::Request(crossed) = event else {
            return false;
        };
        let age_ms = crossed.elapsed_ms();
        if crossed.oneway || age_ms <= self.limits.age_ms_max {
            return false;
        }
        crossed.peer.counts.refused.add(1);
        let remark = format!(
            "[TIMEOUT_CLEAN_QUEUE] the request waited {age_ms} ms for the broker's control plane; the limit is {} (crossing_age_ms_max)",
            self.limits.age_ms_max
        );
        crossed.respond(response_code::SYSTEM_BUSY, Some(&remark), &[], Bytes::new());
        true
    }
}

impl Line {
    fn wants_turn(&self) -> bool {
        !self.has_turn && !self.paused && !self.events.is_empty()
    }
}

impl Waiting {
    /// Takes the requests of a connection that has ended out of its line, apart from oneways. What is left is not paused
    /// any more: Python learns of the end soon, however much of this connection is under way.
    fn end_line(&mut self, id: u64) -> Vec<Crossed> {
        let line = self.lines.entry(id).or_default();
        line.paused = false;
        line.ended = true;
        let mut dropped = Vec::new();
        for event in std::mem::take(&mut line.events) {
            match event {
                Event::Request(crossed) if !crossed.oneway => {
                    let size = crossed.len();
                    line.requests -= 1;
                    line.bytes -= size;
                    self.loads.remove(line.network, size);
                    dropped.push(crossed);
                }
                kept => line.events.push_back(kept),
            }
        }
        dropped
    }

    /// The next event whose connection is not paused.
    fn take_next(&mut self) -> Option<Event> {
        while let Some(id) = self.turns.next() {
            let taken = self.take_of(id);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    fn take_of(&mut self, id: u64) -> Option<Event> {
        let line = self.lines.get_mut(&id)?;
        line.has_turn = false;
        if line.paused {
            return None;
        }
        let event = line.events.pop_front()?;
        if let Event::Request(crossed) | Event::Answer(crossed) = &event {
            let size = crossed.len();
            line.requests -= 1;
            line.bytes -= size;
            self.loads.remove(line.network, size);
        }
        if line.events.is_empty() {
            self.lines.remove(&id);
        } else {
            line.has_turn = true;
            self.turns.add(line.network, id);
        }
        Some(event)
    }
}
