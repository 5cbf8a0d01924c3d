//! One socket with any number of requests under way, told apart by their number (`opaque`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use foldhash::fast::RandomState;
use metaq_transport::{Progress, Protocol, Transport, sniff};
use metaq_wire::{Encoding, FrameEncoder, Header, WireError, next_frame};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::error::ClientError;
use crate::net::request::{Reply, Request};

/// Space for one read of the socket.
pub(crate) const READ_BYTES: usize = 128 * 1024;
/// While so many pieces wait for the socket, a peer that asks something of us is not answered.
const UNWRITTEN_MAX: usize = 64;
/// What a peer gets that asks something of us here.
const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;

type Waiter = oneshot::Sender<Result<Reply, ClientError>>;

/// An open connection. A task of the client's network thread owns its socket; this is what the others see of it.
pub(crate) struct Connection {
    address: Arc<str>,
    desk: Mutex<Desk>,
    /// There is something to write, or the end has come.
    work: Notify,
}

/// What is under way.
#[derive(Default)]
struct Desk {
    /// Bounded by its callers: each has a limited number of requests under way.
    output: VecDeque<Bytes>,
    waiting: HashMap<i32, Waiter, RandomState>,
    last_opaque: i32,
    ended: Option<String>,
}

impl Connection {
    pub(crate) fn new(address: Arc<str>) -> Arc<Self> {
        Arc::new(Connection { address, desk: Mutex::default(), work: Notify::new() })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.desk.lock().ended.is_none()
    }

    /// Puts a request into the line; what is returned waits for its answer, and gives it up when dropped.
    pub(crate) fn ask(self: &Arc<Self>, request: Request) -> Result<Pending, ClientError> {
        let mut desk = self.desk.lock();
        self.require_open(&desk)?;
        let opaque = desk.next_opaque();
        desk.push(request.encode(opaque, false).map_err(ClientError::Request)?);
        let (sender, receiver) = oneshot::channel();
        desk.waiting.insert(opaque, sender);
        drop(desk);
        self.work.notify_one();
        Ok(Pending { connection: Arc::clone(self), opaque, receiver })
    }

    /// The same for what nobody answers.
    pub(crate) fn tell(&self, request: Request) -> Result<(), ClientError> {
        let mut desk = self.desk.lock();
        self.require_open(&desk)?;
        let opaque = desk.next_opaque();
        desk.push(request.encode(opaque, true).map_err(ClientError::Request)?);
        drop(desk);
        self.work.notify_one();
        Ok(())
    }

    /// Ends it: who waits for an answer is told why, and nothing is asked here any more.
    pub(crate) fn end(&self, reason: &str) {
        let mut desk = self.desk.lock();
        if desk.ended.is_some() {
            return;
        }
        desk.ended = Some(reason.to_owned());
        desk.output.clear();
        let waiting = std::mem::take(&mut desk.waiting);
        drop(desk);
        for waiter in waiting.into_values() {
            // Who has given up is not there any more.
            let _gone = waiter.send(Err(self.ended(reason)));
        }
        self.work.notify_one();
    }

    fn ended(&self, reason: &str) -> ClientError {
        ClientError::Ended { address: self.address.to_string(), reason: reason.to_owned() }
    }

    fn require_open(&self, desk: &Desk) -> Result<(), ClientError> {
        match &desk.ended {
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
                let mut desk = self.desk.lock();
                if let Some(reason) = &desk.ended {
                    return reason.clone();
                }
                writing.append(&mut desk.output);
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
                    // Before frames are taken off: the first bytes tell what a peer speaks.
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
                let waiter = self.desk.lock().waiting.remove(&header.opaque);
                if let Some(waiter) = waiter {
                    let _gone = waiter.send(Ok(Reply::new(&whole, &frame, &header)));
                }
            } else if !header.is_oneway() {
                self.refuse(frame.encoding, &header, unwritten)?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Members of groups are asked on the connections that told of their membership, and never on these. A peer that
    /// asks on and reads no answers gets none: they would be kept for it without end.
    fn refuse(&self, encoding: Encoding, header: &Header<'_>, unwritten: usize) -> Result<(), WireError> {
        let mut desk = self.desk.lock();
        if unwritten + desk.output.len() >= UNWRITTEN_MAX {
            return Ok(());
        }
        let mut out = Vec::new();
        let mut frame = FrameEncoder::response(&mut out, encoding, REQUEST_CODE_NOT_SUPPORTED, header.opaque);
        frame.remark("this connection takes no requests");
        frame.finish(0)?;
        desk.output.push_back(Bytes::from(out));
        Ok(())
    }
}

impl Desk {
    /// Never one that is still waited for, however often the counter has gone round.
    fn next_opaque(&mut self) -> i32 {
        loop {
            self.last_opaque = self.last_opaque.wrapping_add(1) & i32::MAX;
            if !self.waiting.contains_key(&self.last_opaque) {
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

/// A request under way.
pub(crate) struct Pending {
    connection: Arc<Connection>,
    opaque: i32,
    receiver: oneshot::Receiver<Result<Reply, ClientError>>,
}

impl Pending {
    pub(crate) async fn answer(mut self) -> Result<Reply, ClientError> {
        match (&mut self.receiver).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Closed),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.connection.desk.lock().waiting.remove(&self.opaque);
    }
}

/// `protocol` is known only of a peer that has sent no frame yet.
fn not_a_frame(protocol: Option<Protocol>, error: &WireError) -> String {
    match protocol {
        Some(protocol @ (Protocol::Tls | Protocol::Http1 | Protocol::Http2)) => {
            format!("the peer speaks {protocol}, not {}", Protocol::Remoting)
        }
        _ => format!("the peer sent no valid frame: {error}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_a_peer_does_not_read_are_not_kept_for_it_without_end() {
        let mut asked = Vec::new();
        for opaque in 0..1000 {
            FrameEncoder::request(&mut asked, Encoding::Json, 220, opaque, 0).finish(0).unwrap();
        }
        let connection = Connection::new("peer".into());
        connection.take_frames(&mut BytesMut::from(&asked[..]), 4096, 3).unwrap();
        let kept = connection.desk.lock().output.len();
        assert!((1..=UNWRITTEN_MAX).contains(&kept), "{kept} answers are kept");
        connection.take_frames(&mut BytesMut::from(&asked[..]), 4096, UNWRITTEN_MAX).unwrap();
        assert_eq!(connection.desk.lock().output.len(), kept);
    }
}
