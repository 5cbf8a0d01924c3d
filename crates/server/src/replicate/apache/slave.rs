//! The slave's end behind an Apache master: appends its log and reports what this disk holds.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use metaq_store::Store;
use parking_lot::Mutex;

use crate::notice::Notice;
use crate::replicate::apache::records::Records;
use crate::replicate::apache::{BEAT_INTERVAL, HEAD_BYTES, bad, why};

const READ_BUFFER_BYTES: usize = 256 << 10;
/// How much of the log is read a second time at the start, to find out whether it is still the same log.
const OVERLAP_BYTES: i64 = 64 << 10;
/// How long a wait for the disk lasts before the reporting thread looks around again.
const SYNC_WAIT: Duration = Duration::from_millis(50);

/// A link to an Apache master, from its start to its end.
pub struct ApacheFollower {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<Store>,
    silence_max: Duration,
    stream: TcpStream,
    /// The first report: where the master begins.
    asked: i64,
    opened: Instant,
    heard_ms: AtomicI64,
    is_heard: AtomicBool,
    received: AtomicI64,
    notice: Notice,
    is_closed: AtomicBool,
    closed: Mutex<Option<String>>,
}

/// A link to an Apache master in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApacheFollowerFigures {
    /// The end of what the master has sent.
    pub received: i64,
    pub silent_ms: i64,
    /// Why the link was closed; None while it lives.
    pub closed: Option<String>,
}

impl ApacheFollower {
    /// Follows the master at the other end of the socket from the end of the store's log on.
    pub fn start(stream: TcpStream, store: Arc<Store>, silence_max: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(silence_max))?;
        stream.set_write_timeout(Some(silence_max))?;
        let asked = first_report(&store);
        let shared = Arc::new(Shared {
            store,
            silence_max,
            stream,
            asked,
            opened: Instant::now(),
            heard_ms: AtomicI64::new(0),
            is_heard: AtomicBool::new(false),
            received: AtomicI64::new(asked),
            notice: Notice::new()?,
            is_closed: AtomicBool::new(false),
            closed: Mutex::new(None),
        });
        let threads = vec![
            spawn("metaq-ha-recv", &shared, Shared::receive)?,
            spawn("metaq-ha-report", &shared, Shared::report)?,
        ];
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Becomes readable when the link was closed.
    pub fn fileno(&self) -> i32 {
        self.shared.notice.fileno()
    }

    pub fn figures(&self) -> ApacheFollowerFigures {
        let shared = &self.shared;
        let heard_ms = shared.heard_ms.load(Ordering::Relaxed);
        ApacheFollowerFigures {
            received: shared.received.load(Ordering::Relaxed),
            silent_ms: shared.opened.elapsed().as_millis() as i64 - heard_ms,
            closed: shared.closed.lock().clone(),
        }
    }

    /// Ends the link and waits until nothing more is appended through it.
    pub fn stop(&self) {
        self.shared.close("it was asked to end".to_owned());
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has printed its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ApacheFollower {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The offset at which the stream begins: a little before the end of the log, in the same file, so that both logs can
/// be compared.
///
/// Never 0, which Apache takes for "begin with your newest file". Its stream then begins at offset 1. The byte at offset 0
/// is the highest of the first record's size. It is 0 for any record of less than 16 MiB; for a larger one the record is
/// refused as unsound.
fn first_report(store: &Store) -> i64 {
    let end = store.end_offset();
    let file_start = end - end % store.log_file_bytes();
    file_start.max(end - OVERLAP_BYTES).max(1)
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    work: fn(&Shared) -> io::Result<()>,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(error) = work(&shared) {
            shared.close(why(&error, shared.silence_max));
        }
    })
}

impl Shared {
    fn close(&self, reason: String) {
        {
            let mut closed = self.closed.lock();
            if closed.is_some() {
                return;
            }
            *closed = Some(reason);
        }
        self.is_closed.store(true, Ordering::SeqCst);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.store.wake_followers();
        self.notice.set();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// The reader thread.
    fn receive(&self) -> io::Result<()> {
        let end = self.store.end_offset();
        let mut overlap = self.store.log_bytes(self.asked, (end - self.asked).max(0) as usize);
        let mut records = Records::new(end, if end == 0 { &[0] } else { &[] });
        let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, &self.stream);
        let mut chunk = vec![0; READ_BUFFER_BYTES];
        let mut expected = self.asked;
        while !self.is_closed() {
            let mut left = self.read_head(&mut input, expected)?;
            while left > 0 {
                let part = &mut chunk[..left.min(READ_BUFFER_BYTES)];
                input.read_exact(part)?;
                let fresh = skip_known(part, expected, &mut overlap)?;
                records.add(fresh);
                records.append_to(&self.store)?;
                left -= part.len();
                expected += part.len() as i64;
                self.received.store(expected, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Reads the head of a frame and returns the size of its bytes.
    fn read_head(&self, input: &mut impl Read, expected: i64) -> io::Result<usize> {
        let mut head = [0; HEAD_BYTES];
        input.read_exact(&mut head)?;
        let mut fields = &head[..];
        let (physical_offset, size) = (fields.get_i64(), fields.get_i32());
        if physical_offset != expected {
            return Err(bad(format!(
                "the master sent offset {physical_offset}, this log continues at {expected}"
            )));
        }
        let file_bytes = self.store.log_file_bytes();
        let room = file_bytes - physical_offset % file_bytes;
        if size < 0 || i64::from(size) > room {
            return Err(bad(format!(
                "the master sent {size} bytes at offset {physical_offset}, where a file has room for {room}: \
                 commit_log_file_bytes here must equal mappedFileSizeCommitLog of the master"
            )));
        }
        self.heard_ms.store(self.opened.elapsed().as_millis() as i64, Ordering::Relaxed);
        self.is_heard.store(true, Ordering::SeqCst);
        Ok(size as usize)
    }

    /// The thread that reports: whenever this disk holds more, and at least as often as a beat is due.
    fn report(&self) -> io::Result<()> {
        let end = self.store.end_offset();
        while !self.store.wait_flushed(end, SYNC_WAIT) {
            if self.is_closed() {
                return Ok(());
            }
            std::thread::sleep(SYNC_WAIT);
        }
        let mut stream = &self.stream;
        stream.write_all(&self.asked.to_be_bytes())?;
        // A second report could reach Apache together with the first, and it would take that for the beginning.
        while !self.is_heard.load(Ordering::SeqCst) && !self.is_closed() {
            std::thread::sleep(SYNC_WAIT);
        }
        let mut reported = self.asked;
        let mut last_write = Instant::now();
        while !self.is_closed() {
            let held = self.store.held_offset().max(reported);
            if held > reported || last_write.elapsed() >= BEAT_INTERVAL {
                stream.write_all(&held.to_be_bytes())?;
                (reported, last_write) = (held, Instant::now());
            }
            let end = self.store.end_offset();
            if end <= reported {
                self.store.follow(BEAT_INTERVAL, || self.store.end_offset() > reported || self.is_closed());
            } else if !self.store.wait_flushed(end, SYNC_WAIT) {
                // A store that cannot sync any more answers at once.
                std::thread::sleep(SYNC_WAIT);
            }
        }
        Ok(())
    }
}

/// Compares the bytes with what the log has already, and returns the rest.
fn skip_known<'a>(bytes: &'a [u8], at: i64, overlap: &mut Option<Bytes>) -> io::Result<&'a [u8]> {
    let Some(known) = overlap else { return Ok(bytes) };
    let both = known.len().min(bytes.len());
    if let Some(index) = (0..both).find(|index| known[*index] != bytes[*index]) {
        return Err(bad(format!(
            "the master's log differs from this one at offset {}: one of them has lost its end and was written \
             again; let this store start over, or keep it and stop following",
            at + index as i64
        )));
    }
    known.advance(both);
    if known.is_empty() {
        *overlap = None;
    }
    Ok(&bytes[both..])
}
