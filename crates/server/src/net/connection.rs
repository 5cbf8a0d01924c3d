//! One connection, one task: read all that the socket has, handle every whole frame, write all answers at once.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use metaq_wire::next_frame;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;

use crate::net::answers::Answers;
use crate::net::listener::Shared;
use crate::net::output::{GATHER_MAX, Output};
use crate::net::peer::Peer;

/// Room for one read; a longer frame grows the buffer as its bytes arrive, never on the word of its length.
const READ_BYTES: usize = 64 * 1024;
/// A read buffer that grew past this is given back when it is empty.
const READ_BYTES_KEPT: usize = 1024 * 1024;
/// With this many unconfirmed answers the connection reads no further.
const UNCONFIRMED_MAX: usize = 16 * 1024;

/// Why a connection ended.
enum End {
    PeerLeft,
    /// The stream holds bytes that are not a frame.
    Malformed,
    Asked,
}

/// Runs a connection to its end.
pub async fn run(shared: Arc<Shared>, mut stream: TcpStream, peer: Arc<Peer>) {
    let _end = converse(&shared, &mut stream, &peer).await;
    peer.close();
    shared.forget(&peer);
}

async fn converse(shared: &Shared, stream: &mut TcpStream, peer: &Arc<Peer>) -> End {
    let (mut reader, mut writer) = stream.split();
    let mut input = Input::default();
    let mut answers = Answers::default();
    loop {
        // Read before the mail is taken, so that answers posted before the close are still written.
        let is_closing = peer.is_closing();
        for posted in peer.take_posted() {
            answers.absorb(posted);
        }
        release_answers(shared, peer, &mut answers);
        if write_now(&mut writer, &mut answers.output).is_err() {
            return End::PeerLeft;
        }
        if is_closing {
            return End::Asked;
        }
        // Stop reading from a peer that does not read its answers.
        let may_read = answers.output.len() < shared.settings.connection_output_bytes_max / 2
            && answers.unconfirmed_count() < UNCONFIRMED_MAX;
        tokio::select! {
            read = input.read(&mut reader), if may_read => match read {
                Ok(0) | Err(_) => return End::PeerLeft,
                Ok(_) => {
                    if handle_frames(shared, peer, &mut input, &mut answers).is_err() {
                        let _last_words = write_now(&mut writer, &mut answers.output);
                        return End::Malformed;
                    }
                }
            },
            () = peer.woken() => {}
            ready = writer.writable(), if !answers.output.is_empty() => {
                if ready.is_err() {
                    return End::PeerLeft;
                }
            }
        }
    }
}

/// Handles every whole frame in the buffer, then hands the store the work that they left together.
fn handle_frames(
    shared: &Shared,
    peer: &Arc<Peer>,
    input: &mut Input,
    answers: &mut Answers,
) -> Result<(), metaq_wire::WireError> {
    let mut handled = Ok(());
    let plane = shared.plane();
    let broker = plane.as_ref().map(|plane| &plane.broker);
    loop {
        match next_frame(input.unread(), shared.settings.frame_bytes_max) {
            Ok(Some(frame)) => {
                handled = shared.handle(broker, peer, &frame, answers);
                let size = frame.size;
                input.consume(size);
                peer.mark_frame();
                if handled.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                handled = Err(error);
                break;
            }
        }
    }
    if let Some(broker) = broker {
        broker.finish_pass(answers);
    }
    peer.mark_active(!input.unread().is_empty());
    input.compact();
    handled
}

/// Releases the answers whose wait for the store is over, and asks to be woken for the rest.
fn release_answers(shared: &Shared, peer: &Arc<Peer>, answers: &mut Answers) {
    let is_last_call = peer.answers_unconfirmed.load(SeqCst);
    if answers.unconfirmed_count() > 0 {
        let broker = shared.answering();
        if let Some(broker) = &broker {
            // Ask first and look second: a confirmation in between then wakes us for nothing, but none is missed.
            broker.wake_on_confirmation(peer);
            answers.release_confirmed(broker.store.confirmed_offset());
            if broker.sync_failed() {
                answers.fail_unconfirmed();
            }
            let patience_ms = broker.flush_timeout_ms;
            if let Some(older_than_ms) = peer.now_ms().checked_sub(patience_ms) {
                answers.release_expired(older_than_ms);
            }
        }
        if is_last_call || broker.is_none() {
            answers.release_expired(u64::MAX);
        }
        peer.mark_unconfirmed(answers.unconfirmed_since_ms());
    }
    if is_last_call {
        peer.answers_unconfirmed.store(false, SeqCst);
    }
}

/// Writes until everything is out or the socket takes no more.
fn write_now(writer: &mut WriteHalf<'_>, output: &mut Output) -> std::io::Result<()> {
    while !output.is_empty() {
        let mut gather = [IoSlice::new(&[]); GATHER_MAX];
        let count = output.gather(&mut gather);
        match writer.try_write_vectored(&gather[..count]) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => output.advance(written),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The bytes read and not yet handled.
#[derive(Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
}

impl Input {
    async fn read(&mut self, reader: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<usize> {
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES);
        }
        reader.read_buf(&mut self.buffer).await
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn consume(&mut self, size: usize) {
        self.start += size;
    }

    fn compact(&mut self) {
        if self.start == self.buffer.len() {
            if self.buffer.capacity() > READ_BYTES_KEPT {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
        } else if self.start > 0 {
            self.buffer.drain(..self.start);
        }
        self.start = 0;
    }
}
