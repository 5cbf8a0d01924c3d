//! One connection, one task: read all that the socket has, handle every whole frame, write all answers at once.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use metaq_transport::{Progress, Protocol, Transport, sniff};
use metaq_wire::{Announced, WireError, announced, next_frame};
use tokio::net::TcpStream;

use crate::metrics::slow_requests::{SlowRequest, part};
use crate::net::answers::{Answers, Waits};
use crate::net::listener::Shared;
use crate::net::memory::{Buffers, Memory};
use crate::net::output::{GATHER_MAX, Output};
use crate::net::peer::Peer;
use crate::net::route::HEADER_BYTES_MAX;

/// Space for one read of the socket.
const READ_BYTES: usize = 64 * 1024;
/// The transport grows a buffer with less space than this.
const SPARE_BYTES_MIN: usize = READ_BYTES / 4;
/// A read buffer that grew past this is given back when it is empty.
const READ_BYTES_KEPT: usize = 1024 * 1024;
/// With this many unconfirmed answers the connection reads no further.
const UNCONFIRMED_MAX: usize = 16 * 1024;

/// Frames and bytes of answers after which the other connections have their turn.
const TURN_FRAMES: usize = 1024;
const TURN_OUTPUT_BYTES: usize = 1024 * 1024;
/// The same bytes when memory is scarce: every connection that asks for much may get this far before it has to read.
const SCARCE_TURN_OUTPUT_BYTES: usize = 64 * 1024;
/// The time after which the other connections have their turn, whatever it was spent on. A hot request takes a few
/// microseconds, so only costly ones come here before [`TURN_FRAMES`]. A network thread serves many connections, and each of
/// them may use this time before a newcomer is heard.
const TURN_MS: u64 = 5;
/// Work between two looks at the clock: a look costs about a hundredth of a hot request.
const LOOK_WORK: usize = 16;
/// Bytes of a frame that are as much work as a frame.
const WORK_BYTES: usize = 4 * 1024;

/// If the budget has no room for a frame that is longer than one read, it is tried again after this time.
const RESERVE_PAUSE: Duration = Duration::from_millis(10);
/// The buffer of a frame that takes longer than this to arrive is no larger than the bytes in it.
const SLOW_FRAME_MS: u64 = 1_000;

/// A connection that makes way for others because it has sent no frame may still send one within this time. It may have
/// done so already, and this server not have looked.
const LAST_CHANCE: Duration = Duration::from_millis(100);

/// Why a connection ended.
enum End {
    PeerLeft,
    /// The peer sent something that is not a frame.
    Malformed(String),
    Asked,
}

/// Runs a connection to its end.
pub async fn run(shared: Arc<Shared>, stream: TcpStream, peer: Arc<Peer>) {
    let end = converse(&shared, Transport::plain(stream, READ_BYTES), &peer).await;
    if let End::Malformed(reason) = end {
        peer.set_end_reason(reason);
    }
    peer.close();
    peer.close_mailbox();
    shared.forget(&peer);
}

async fn converse(shared: &Shared, mut transport: Transport, peer: &Arc<Peer>) -> End {
    let mut buffers = Buffers::new(&peer.memory);
    let mut input = Input::default();
    let mut answers = Answers::default();
    let mut turn = Turn::default();
    let mut behind = Behind::default();
    loop {
        // Read before the mail is taken, so that answers posted before the close are still written.
        let is_closing = peer.is_closing();
        for posted in peer.take_posted() {
            answers.absorb(posted);
        }
        release_answers(shared, peer, &mut answers);
        if transport.write(&mut answers.output).is_err() {
            return End::PeerLeft;
        }
        if is_closing {
            return End::Asked;
        }
        if peer.take_quiet() {
            input.shrink();
            answers.release_buffers();
        }
        let is_behind = !answers.output.is_empty();
        peer.mark_behind(is_behind);
        behind.mark(shared, peer, is_behind);
        // Take nothing more from a peer that does not read its answers. It is woken when it does.
        let must_read = is_behind && (is_full(shared, &answers) || shared.memory.is_scarce());
        if must_read {
            answers.output.trim();
        }
        let may_go_on = !must_read && answers.unconfirmed_count() < UNCONFIRMED_MAX;
        let fits = buffers.count(input.memory() + answers.memory());
        if !fits && !fit(&mut buffers, &mut input, &mut answers) {
            let bytes = input.memory() + answers.memory();
            peer.cut(|| {
                format!("its buffers take {bytes} bytes, and all connections may have no more than {} (memory_bytes_max)", shared.memory.bytes_max())
            });
            return End::Asked;
        }
        if turn.is_over() {
            turn = Turn::default();
            tokio::task::yield_now().await;
        }
        if !input.reserve_frame(&mut buffers) {
            tokio::select! {
                () = tokio::time::sleep(RESERVE_PAUSE) => continue,
                () = peer.woken() => continue,
            }
        }
        if !input.has_frames && peer.gives_way_for_ms().is_some() {
            match last_chance(&mut transport, &mut input, peer).await {
                Some(Ok(Progress::Read(_))) => {}
                Some(Ok(Progress::Writable)) => continue,
                Some(Ok(Progress::EndOfStream) | Err(_)) => return End::PeerLeft,
                None => {
                    peer.close_silent();
                    return End::Asked;
                }
            }
        } else if !(may_go_on && input.has_more) {
            let progress = tokio::select! {
                progress = transport.ready(may_go_on.then_some(&mut input.buffer), is_behind) => progress,
                () = peer.woken() => continue,
            };
            match progress {
                Ok(Progress::Read(_)) => {}
                Ok(Progress::Writable) => continue,
                Ok(Progress::EndOfStream) | Err(_) => return End::PeerLeft,
            }
        }
        if let Err(error) = handle_frames(shared, peer, &mut input, &mut answers, &mut turn) {
            let _last_words = transport.write(&mut answers.output);
            return End::Malformed(input.explain(&error, shared.settings.frame_bytes_max));
        }
    }
}

/// Waits for bytes of a connection that makes way for others, but not for long.
#[cold]
async fn last_chance(
    transport: &mut Transport,
    input: &mut Input,
    peer: &Peer,
) -> Option<std::io::Result<Progress>> {
    let waited = Duration::from_millis(peer.gives_way_for_ms().unwrap_or(0));
    let left = LAST_CHANCE.checked_sub(waited)?;
    tokio::time::timeout(left, transport.ready(Some(&mut input.buffer), false)).await.ok()
}

/// Counts the buffers after everything that holds nothing was given back; whether the budget has room for the rest.
#[cold]
fn fit(buffers: &mut Buffers<'_>, input: &mut Input, answers: &mut Answers) -> bool {
    input.shrink();
    answers.output.trim();
    answers.release_buffers();
    buffers.count(input.memory() + answers.memory())
}

/// Whether the peer has more to read than it should.
fn is_full(shared: &Shared, answers: &Answers) -> bool {
    let unsent_max = shared.settings.connection_output_bytes_max;
    answers.output.len() >= unsent_max || answers.output.memory() >= unsent_max
}

/// The work of a connection since the others had their turn.
#[derive(Default)]
struct Turn {
    frames: usize,
    output_bytes: usize,
    output_bytes_max: usize,
    /// The time of the passes before this one.
    spent_ms: u64,
    /// Work since the last look at the clock.
    work: usize,
    is_late: bool,
}

impl Turn {
    fn is_over(&self) -> bool {
        self.frames >= TURN_FRAMES || self.output_bytes > self.output_bytes_max || self.is_late
    }

    /// Counts a frame, and looks at the clock if it was costly or enough others came before it.
    #[inline]
    fn add_frame(&mut self, frame_bytes: usize, is_costly: bool, pass_ms: impl FnOnce() -> u64) {
        self.frames += 1;
        self.work += 1 + frame_bytes / WORK_BYTES;
        if is_costly || self.work >= LOOK_WORK {
            self.work = 0;
            self.is_late = self.spent_ms + pass_ms() >= TURN_MS;
        }
    }

    /// Counts the time of a whole pass.
    fn add_pass(&mut self, pass_ms: u64) {
        self.spent_ms += pass_ms;
        self.is_late |= self.spent_ms >= TURN_MS;
    }

    /// Gives the peer less at a time if the memory for its answers may not be there.
    fn limit_output(&mut self, memory: &Memory) {
        self.output_bytes_max = match () {
            () if !memory.is_scarce() => TURN_OUTPUT_BYTES,
            () if memory.excess() == 0 => SCARCE_TURN_OUTPUT_BYTES,
            () => 0,
        };
    }
}

/// Handles the whole frames in the buffer until the turn is over, then hands the store the work that they left together.
fn handle_frames(
    shared: &Shared,
    peer: &Arc<Peer>,
    input: &mut Input,
    answers: &mut Answers,
    turn: &mut Turn,
) -> Result<(), WireError> {
    let mut handled = Ok(());
    let plane = shared.plane();
    let broker = plane.as_ref().map(|plane| &plane.broker);
    let began_ms = peer.now_ms();
    let (unsent_bytes, output_bytes) = (answers.output.len(), turn.output_bytes);
    input.has_more = false;
    turn.limit_output(&shared.memory);
    loop {
        if turn.is_over() {
            input.has_more = !input.unread().is_empty();
            break;
        }
        match next_frame(input.unread(), shared.settings.frame_bytes_max) {
            Ok(Some(frame)) => {
                handled = shared.handle(broker, peer, &frame, answers);
                let size = frame.size;
                if !input.has_frames {
                    shared.greet(peer);
                }
                input.consume(size);
                peer.mark_frame();
                turn.add_frame(size, answers.take_costly(), || peer.now_ms() - began_ms);
                turn.output_bytes = output_bytes + answers.output.len() - unsent_bytes;
                if handled.is_err() {
                    break;
                }
            }
            Ok(None) => {
                handled = input.check_announced();
                break;
            }
            Err(error) => {
                handled = Err(error);
                break;
            }
        }
    }
    if let Some(broker) = broker {
        broker.finish_pass(answers);
    }
    let is_partial = !input.has_more && !input.unread().is_empty();
    let now_ms = peer.mark_active(is_partial);
    turn.add_pass(now_ms - began_ms);
    if now_ms - began_ms >= shared.slow_requests.limit_ms() {
        note_slow_pass(shared, peer, answers, began_ms, now_ms);
    }
    if let Some(broker) = broker {
        answers.record_answered(&broker.latencies, now_ms - began_ms);
    }
    input.compact();
    let is_slow = is_partial && peer.partial_for_ms_at(now_ms).is_some_and(|ms| ms > SLOW_FRAME_MS);
    // Thousands of connections that come at once would fill the budget with empty buffers.
    if is_slow || shared.memory.is_scarce() {
        input.shrink();
    }
    handled
}

/// Notes the requests of a pass that took long. They were handled together, so each of them took all of that time.
#[cold]
fn note_slow_pass(shared: &Shared, peer: &Peer, answers: &Answers, began_ms: u64, now_ms: u64) {
    for (request_code, requests) in answers.handled_since(began_ms) {
        shared.slow_requests.note(SlowRequest {
            remote: peer.remote,
            request_code: Some(request_code),
            requests,
            topic: None,
            parts: vec![(part::HANDLED, now_ms - began_ms)],
        });
    }
}

/// Notes when a peer begins not to read its answers, and how long it took once it has read them all.
#[derive(Default)]
struct Behind {
    since_ms: Option<u64>,
}

impl Behind {
    #[inline]
    fn mark(&mut self, shared: &Shared, peer: &Peer, is_behind: bool) {
        if is_behind != self.since_ms.is_some() {
            self.change(shared, peer);
        }
    }

    #[cold]
    fn change(&mut self, shared: &Shared, peer: &Peer) {
        let now_ms = peer.now_ms();
        let Some(since_ms) = self.since_ms.take() else {
            self.since_ms = Some(now_ms);
            return;
        };
        if now_ms - since_ms >= shared.slow_requests.limit_ms() {
            shared.slow_requests.note(SlowRequest {
                remote: peer.remote,
                request_code: None,
                requests: 1,
                topic: None,
                parts: vec![(part::WRITTEN, now_ms - since_ms)],
            });
        }
    }
}

/// Releases the answers whose wait for the store is over, and asks to be woken for the rest.
fn release_answers(shared: &Shared, peer: &Arc<Peer>, answers: &mut Answers) {
    let is_last_call = peer.answers_unconfirmed.load(SeqCst);
    if answers.unconfirmed_count() > 0 {
        let broker = shared.answering();
        let now_ms = peer.now_ms();
        let waits = Waits {
            peer,
            broker: broker.as_deref(),
            now_ms,
            slow_requests: &shared.slow_requests,
            slow_ms: shared.slow_requests.limit_ms(),
        };
        if let Some(broker) = &broker {
            // Ask first and look second: a confirmation in between then wakes us for nothing, but none is missed.
            broker.wake_on_confirmation(peer);
            answers.release_confirmed(broker.store.acknowledgeable_offset(), &waits);
            if broker.sync_failed() {
                answers.fail_unconfirmed(&waits);
            }
            let patience_ms = broker.flush_timeout_ms;
            if let Some(older_than_ms) = now_ms.checked_sub(patience_ms) {
                answers.release_expired(older_than_ms, broker.store.held_offset(), &waits);
            }
        }
        if is_last_call && broker.as_ref().is_some_and(|broker| broker.gave_up_confirmations()) {
            answers.give_up_unconfirmed(&waits);
        } else if is_last_call || broker.is_none() {
            let held_offset = broker.as_ref().map_or(0, |broker| broker.store.held_offset());
            answers.release_expired(u64::MAX, held_offset, &waits);
        }
        peer.mark_unconfirmed(answers.unconfirmed_since_ms());
    }
    if is_last_call {
        peer.answers_unconfirmed.store(false, SeqCst);
    }
}

impl metaq_transport::Output for Output {
    fn is_empty(&self) -> bool {
        Output::is_empty(self)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER_MAX]) -> usize {
        Output::gather(self, slices)
    }

    fn advance(&mut self, written: usize) {
        Output::advance(self, written);
    }
}

/// The bytes read and not yet handled.
#[derive(Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    /// A whole frame has come: the peer speaks our protocol.
    has_frames: bool,
    /// The turn ended before all of it was handled.
    has_more: bool,
    /// Memory that the budget has granted to the frame that is arriving; 0 for a short one.
    reserved: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn consume(&mut self, size: usize) {
        self.start += size;
        self.has_frames = true;
        self.reserved = 0;
    }

    /// Why the unread bytes are not a frame: the first bytes of a peer say what it speaks instead.
    fn explain(&self, error: &WireError, frame_bytes_max: usize) -> String {
        let protocol = if self.has_frames { None } else { sniff(self.unread(), frame_bytes_max) };
        match protocol {
            Some(Protocol::Remoting | Protocol::Unknown) | None => format!("not a frame: {error}"),
            Some(protocol) => format!("the peer speaks {protocol}, not {}", Protocol::Remoting),
        }
    }

    fn compact(&mut self) {
        if self.start == self.buffer.len() {
            if self.buffer.capacity() > READ_BYTES_KEPT {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
        } else if self.has_more && self.start < self.buffer.len() / 2 {
            // The rest would be moved after every turn.
            return;
        } else if self.start > 0 {
            self.buffer.drain(..self.start);
        }
        self.start = 0;
    }

    /// The memory that it takes, or may take before the frame that is arriving is whole.
    fn memory(&self) -> usize {
        self.buffer.capacity().max(self.reserved)
    }

    /// Refuses a header that is too long before it is read.
    fn check_announced(&self) -> Result<(), WireError> {
        match announced(self.unread()) {
            Some(Announced { header_length, .. }) if header_length > HEADER_BYTES_MAX => {
                Err(WireError::HeaderTooLong { length: header_length, limit: HEADER_BYTES_MAX })
            }
            _ => Ok(()),
        }
    }

    /// Makes room for the frame that is arriving, if it needs more than one read: first in the budget, for the whole
    /// frame, then in the buffer, as its bytes arrive. False if the budget has no room now.
    fn reserve_frame(&mut self, buffers: &mut Buffers<'_>) -> bool {
        let spare = self.buffer.capacity() - self.buffer.len();
        if spare >= SPARE_BYTES_MIN || self.buffer.len() < SPARE_BYTES_MIN || self.has_more {
            return true;
        }
        let Some(frame) = announced(self.unread()) else { return true };
        if self.reserved == 0 {
            let wanted = self.start + frame.size + READ_BYTES;
            if !buffers.reserve(wanted.saturating_sub(self.memory())) {
                return false;
            }
            self.reserved = wanted;
        }
        let capacity = (2 * self.buffer.capacity()).min(self.reserved);
        self.buffer.reserve_exact(capacity.saturating_sub(self.buffer.len()));
        true
    }

    /// Gives back the part of the buffer that holds nothing.
    fn shrink(&mut self) {
        if self.buffer.len() < SPARE_BYTES_MIN {
            self.buffer.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::PeerMemory;

    #[test]
    fn a_peer_gets_less_at_a_time_when_memory_is_scarce() {
        let memory = Memory::new(1_750_000, usize::MAX);
        let peer = PeerMemory::new(&memory, usize::MAX);
        let mut turn = Turn::default();
        let mut bytes_max = |used: usize| {
            assert!(peer.add(used));
            turn.limit_output(&memory);
            turn.output_bytes_max
        };
        assert_eq!(bytes_max(1_000_000), TURN_OUTPUT_BYTES);
        assert_eq!(bytes_max(560_000), SCARCE_TURN_OUTPUT_BYTES);
        assert_eq!(bytes_max(120_000), 0);
        assert!(!Turn::default().is_over(), "one answer in any case");
    }

    #[test]
    fn a_buffer_grows_as_the_bytes_of_a_long_frame_arrive_after_the_budget_granted_all_of_it() {
        let memory = Memory::new(16 << 20, usize::MAX);
        let peer = PeerMemory::new(&memory, usize::MAX);
        let mut buffers = Buffers::new(&peer);
        let mut input = Input::default();
        let size = 8 << 20;
        input.buffer = Vec::with_capacity(READ_BYTES);
        input.buffer.extend_from_slice(&(size as i32 - 4).to_be_bytes());
        input.buffer.resize(READ_BYTES, 0);
        assert!(input.reserve_frame(&mut buffers));
        assert_eq!((input.memory(), input.buffer.capacity()), (size + READ_BYTES, 2 * READ_BYTES));
        let mut other = Input { buffer: input.buffer.clone(), ..Input::default() };
        other.buffer.shrink_to_fit();
        assert!(!other.reserve_frame(&mut buffers), "the budget has room for one of them");
        while input.buffer.len() < size {
            let arrived = input.buffer.capacity();
            input.buffer.resize(arrived, 0);
            assert!(input.reserve_frame(&mut buffers));
            assert!(input.buffer.capacity() <= (2 * arrived).min(size + READ_BYTES));
        }
        input.consume(size);
        input.compact();
        assert!(buffers.count(input.memory()));
        assert!(other.reserve_frame(&mut buffers), "its turn has come");
    }

    #[test]
    fn a_turn_ends_after_some_time_and_the_clock_is_read_seldom() {
        let looks = std::cell::Cell::new(0);
        let after = |pass_ms| {
            looks.set(looks.get() + 1);
            pass_ms
        };
        let new = || Turn { output_bytes_max: TURN_OUTPUT_BYTES, ..Turn::default() };
        let mut cheap = new();
        for _ in 1..TURN_FRAMES {
            cheap.add_frame(200, false, || after(TURN_MS - 1));
        }
        assert!(!cheap.is_over());
        assert_eq!(looks.take(), (TURN_FRAMES - 1) / LOOK_WORK);

        let mut slow = new();
        for _ in 0..LOOK_WORK {
            assert!(!slow.is_over());
            slow.add_frame(200, false, || after(TURN_MS));
        }
        assert!(slow.is_over());

        let mut costly = new();
        costly.add_frame(200, true, || after(TURN_MS));
        assert!(costly.is_over(), "after a costly request it looks at once");
        let mut long = new();
        long.add_frame(LOOK_WORK * WORK_BYTES, false, || after(TURN_MS));
        assert!(long.is_over(), "and after a long frame");

        let mut many_passes = new();
        many_passes.add_pass(TURN_MS - 1);
        assert!(!many_passes.is_over());
        many_passes.add_frame(200, true, || after(1));
        assert!(many_passes.is_over());
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_named() {
        let explain = |bytes: &[u8], has_frames| {
            let input = Input { buffer: bytes.to_vec(), has_frames, ..Input::default() };
            let error = WireError::FrameTooLong { length: 9, limit: 8 };
            input.explain(&error, metaq_wire::FRAME_BYTES_MAX)
        };
        let hello = [0x16, 3, 1, 0, 0xC5, 1];
        assert_eq!(explain(&hello, false), "the peer speaks TLS, not RocketMQ's remoting protocol");
        assert!(explain(b"GET / HTTP/1.1\r\n", false).contains("HTTP/1"));
        assert!(explain(b"PROXY TCP4 192.0.2.7 ", false).contains("PROXY protocol, version 1"));
        let plain = "not a frame: frame of 9 bytes is longer than the limit of 8";
        assert_eq!(explain(&hello, true), plain, "only the first bytes name a protocol");
        assert_eq!(explain(&[0x7F; 9], false), plain);
    }
}
