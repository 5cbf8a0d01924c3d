//! One connection with any number of requests in flight. The number of a request (`opaque`) finds its reply.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use metaq_transport::{Progress, Transport, not_a_frame, sniff};
use metaq_wire::{Encoding, FrameEncoder, Header, WireError, next_frame};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::error::ClientError;
use crate::net::request::{Reply, Request};

/// Space for one read of the socket.
pub(crate) const READ_BYTES: usize = 128 * 1024;
/// Requests of a peer are not answered while this many pieces of output wait for the socket.
const UNWRITTEN_MAX: usize = 64;
const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;

type ReplySender = oneshot::Sender<Result<Reply, ClientError>>;

/// An open connection. A task of the network thread owns its socket; all other code uses this.
pub(crate) struct Connection {
    address: Arc<str>,
    state: Mutex<State>,
    /// There is something to write, or the connection has ended.
    work: Notify,
}

#[derive(Default)]
struct State {
    /// Bounded by its callers: each has a limited number of requests in flight.
    output: VecDeque<Bytes>,
    in_flight: HashMap<i32, ReplySender, RandomState>,
    last_opaque: i32,
    ended: Option<String>,
}

impl Connection {
    pub(crate) fn new(address: Arc<str>) -> Arc<Self> {
        Arc::new(Connection { address, state: Mutex::default(), work: Notify::new() })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().ended.is_none()
    }

    /// Queues a request. The result waits for the reply; dropping it gives the reply up.
    pub(crate) fn send(self: &Arc<Self>, request: Request) -> Result<Pending, ClientError> {
        let mut state = self.state.lock();
        self.require_open(&state)?;
        let opaque = state.next_opaque();
        state.push(request.encode(opaque, false).map_err(ClientError::Request)?);
        let (sender, receiver) = oneshot::channel();
        state.in_flight.insert(opaque, sender);
        drop(state);
        self.work.notify_one();
        Ok(Pending { connection: Arc::clone(self), opaque, receiver })
    }

    /// Queues a request that gets no reply.
    pub(crate) fn send_oneway(&self, request: Request) -> Result<(), ClientError> {
        let mut state = self.state.lock();
        self.require_open(&state)?;
        let opaque = state.next_opaque();
        state.push(request.encode(opaque, true).map_err(ClientError::Request)?);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Ends the connection: all requests in flight fail with the reason, and no new ones are accepted.
    pub(crate) fn end(&self, reason: &str) {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(reason.to_owned());
        state.output.clear();
        let in_flight = std::mem::take(&mut state.in_flight);
        drop(state);
        for sender in in_flight.into_values() {
            // The caller may have given up.
            let _gone = sender.send(Err(self.ended(reason)));
        }
        self.work.notify_one();
    }

    fn ended(&self, reason: &str) -> ClientError {
        ClientError::Ended { address: self.address.to_string(), reason: reason.to_owned() }
    }

    fn require_open(&self, state: &State) -> Result<(), ClientError> {
        match &state.ended {
            Some(reason) => Err(self.ended(reason)),
            None => Ok(()),
        }
    }

    /// Runs the socket until either side ends the connection.
    pub(crate) async fn run(self: Arc<Self>, mut transport: Transport, frame_bytes_max: usize) {
        let reason = self.converse(&mut transport, frame_bytes_max).await;
        self.end(&reason);
    }

    /// Returns why the connection ended.
    async fn converse(&self, transport: &mut Transport, frame_bytes_max: usize) -> String {
        let mut input = BytesMut::new();
        let mut writing = VecDeque::new();
        let mut has_frames = false;
        loop {
            {
                let mut state = self.state.lock();
                if let Some(reason) = &state.ended {
                    return reason.clone();
                }
                writing.append(&mut state.output);
            }
            if let Err(error) = transport.write(&mut writing) {
                return error.to_string();
            }
            let progress = tokio::select! {
                progress = transport.ready(Some(&mut input), !writing.is_empty()) => progress,
                () = self.work.notified() => continue,
            };
            match progress {
                Ok(Progress::Read(_)) => {
                    // Look at the first bytes before frames are decoded: they show which protocol the peer speaks.
                    let protocol = if has_frames { None } else { sniff(&input, frame_bytes_max) };
                    match self.take_frames(&mut input, frame_bytes_max, writing.len()) {
                        Ok(count) => has_frames |= count > 0,
                        Err(error) => return not_a_frame(protocol, &error),
                    }
                }
                Ok(Progress::Writable) => {}
                Ok(Progress::EndOfStream) => return "the peer closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Takes every whole frame off the input and returns how many there were. `unwritten` is how many pieces the
    /// socket has not taken yet.
    fn take_frames(
        &self,
        input: &mut BytesMut,
        frame_bytes_max: usize,
        unwritten: usize,
    ) -> Result<usize, WireError> {
        let mut count = 0;
        while let Some(frame) = next_frame(input, frame_bytes_max)? {
            let size = frame.size;
            let whole = input.split_to(size).freeze();
            let Some(frame) = next_frame(&whole, frame_bytes_max)? else { break };
            let header = Header::parse(frame.encoding, frame.header)?;
            if header.is_response() {
                let sender = self.state.lock().in_flight.remove(&header.opaque);
                if let Some(sender) = sender {
                    let _gone = sender.send(Ok(Reply::new(&whole, &frame, &header)));
                }
            } else if !header.is_oneway() {
                self.refuse(frame.encoding, &header, unwritten)?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Brokers send requests on the connection that registered a group member, which is never this one. A peer that
    /// sends requests and does not read gets no refusals: they would pile up here without limit.
    fn refuse(&self, encoding: Encoding, header: &Header<'_>, unwritten: usize) -> Result<(), WireError> {
        let mut state = self.state.lock();
        if unwritten + state.output.len() >= UNWRITTEN_MAX {
            return Ok(());
        }
        let mut out = Vec::new();
        let mut frame = FrameEncoder::response(&mut out, encoding, REQUEST_CODE_NOT_SUPPORTED, header.opaque);
        frame.remark("this connection takes no requests");
        frame.finish(0)?;
        state.output.push_back(Bytes::from(out));
        Ok(())
    }
}

impl State {
    /// Skips numbers that are still in flight after the counter wrapped around.
    fn next_opaque(&mut self) -> i32 {
        loop {
            self.last_opaque = self.last_opaque.wrapping_add(1) & i32::MAX;
            if !self.in_flight.contains_key(&self.last_opaque) {
                return self.last_opaque;
            }
        }
    }

    fn push(&mut self, (head, body): (Bytes, Bytes)) {
        self.output.push_back(head);
        if !body.is_empty() {
            self.output.push_back(body);
        }
    }
}

/// A request in flight.
pub(crate) struct Pending {
    connection: Arc<Connection>,
    opaque: i32,
    receiver: oneshot::Receiver<Result<Reply, ClientError>>,
}

impl Pending {
    pub(crate) async fn reply(mut self) -> Result<Reply, ClientError> {
        match (&mut self.receiver).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Closed),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.connection.state.lock().in_flight.remove(&self.opaque);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_a_peer_does_not_read_are_not_kept_without_limit() {
        let mut requests = Vec::new();
        for opaque in 0..1000 {
            FrameEncoder::request(&mut requests, Encoding::Json, 220, opaque, 0).finish(0).unwrap();
        }
        let connection = Connection::new("peer".into());
        connection.take_frames(&mut BytesMut::from(&requests[..]), 4096, 3).unwrap();
        let kept = connection.state.lock().output.len();
        assert!((1..=UNWRITTEN_MAX).contains(&kept), "{kept} refusals are kept");
        connection.take_frames(&mut BytesMut::from(&requests[..]), 4096, UNWRITTEN_MAX).unwrap();
        assert_eq!(connection.state.lock().output.len(), kept);
    }
}
