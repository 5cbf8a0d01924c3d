//! The master's end in front of Apache slaves: sends them what is confirmed. Nobody ever waits for them.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metaq_store::Store;
use parking_lot::Mutex;

use crate::notice::Notice;
use crate::replicate::apache::{BEAT_INTERVAL, HEAD_BYTES, bad, why};

/// Larger frames gain nothing, and Apache's slaves take at most 4 MiB.
const CHUNK_BYTES: usize = 256 << 10;
/// Each slave costs two threads.
const LINKS_MAX: usize = 16;
/// A pin moves when it is at least this far behind.
const PIN_STEP_BYTES: i64 = 1 << 20;
/// How long a sender waits before it looks around again.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const UNKNOWN: i64 = -1;

/// All links to Apache slaves.
pub struct ApacheMaster {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<Store>,
    silence_max: Duration,
    bytes_per_second: u64,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    next_link: AtomicU64,
    notice: Notice,
    is_stopping: AtomicBool,
}

struct Link {
    id: u64,
    remote: String,
    stream: TcpStream,
    opened: Instant,
    /// `UNKNOWN` until the first report.
    sent: AtomicI64,
    reported: AtomicI64,
    heard_ms: AtomicI64,
    closed: Mutex<Option<String>>,
}

/// A link to an Apache slave in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApacheSlaveFigures {
    pub id: u64,
    pub remote: String,
    /// The end of what was sent; -1 before the slave has said where to begin.
    pub sent: i64,
    /// The end of the log that the slave reports, flushed or not; -1 before its first report.
    pub reported: i64,
    pub silent_ms: i64,
    /// Why the link was closed; None while it lives.
    pub closed: Option<String>,
}

impl ApacheMaster {
    /// `bytes_per_second` limits what each slave gets; 0 means no limit.
    pub fn new(store: Arc<Store>, silence_max: Duration, bytes_per_second: u64) -> io::Result<Self> {
        let shared = Shared {
            store,
            silence_max,
            bytes_per_second,
            links: Mutex::default(),
            next_link: AtomicU64::new(1),
            notice: Notice::new()?,
            is_stopping: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), threads: Mutex::default() })
    }

    /// Becomes readable when a link was closed.
    pub fn fileno(&self) -> i32 {
        self.shared.notice.fileno()
    }

    /// Serves a slave on a connected socket. Returns the link's number.
    pub fn add_link(&self, stream: TcpStream, remote: String) -> io::Result<u64> {
        let shared = &self.shared;
        if shared.is_stopping.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        if threads.len() >= 2 * LINKS_MAX {
            return Err(io::Error::other(format!("{LINKS_MAX} Apache slaves are connected, the limit")));
        }
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(shared.silence_max))?;
        stream.set_write_timeout(Some(shared.silence_max))?;
        let link = Arc::new(Link {
            id: shared.next_link.fetch_add(1, Ordering::Relaxed),
            remote,
            stream,
            opened: Instant::now(),
            sent: AtomicI64::new(UNKNOWN),
            reported: AtomicI64::new(UNKNOWN),
            heard_ms: AtomicI64::new(0),
            closed: Mutex::new(None),
        });
        shared.links.lock().insert(link.id, Arc::clone(&link));
        threads.push(spawn("metaq-ha-send", shared, &link, Shared::send)?);
        threads.push(spawn("metaq-ha-ack", shared, &link, Shared::read_reports)?);
        Ok(link.id)
    }

    /// Every link. One that was closed is named once more and then forgotten.
    pub fn links(&self) -> Vec<ApacheSlaveFigures> {
        self.shared.notice.clear();
        let mut links = self.shared.links.lock();
        let figures: Vec<ApacheSlaveFigures> = links.values().map(|link| link.figures()).collect();
        let closed = figures.iter().filter(|link| link.closed.is_some());
        for link in closed {
            links.remove(&link.id);
        }
        figures
    }

    /// Ends every link and waits for their threads.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        let links: Vec<Arc<Link>> = self.shared.links.lock().values().cloned().collect();
        for link in links {
            self.shared.close(&link, "this broker no longer serves Apache slaves".to_owned());
        }
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has printed its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ApacheMaster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    work: fn(&Shared, &Link) -> io::Result<()>,
) -> io::Result<JoinHandle<()>> {
    let (shared, link) = (Arc::clone(shared), Arc::clone(link));
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let reason = match work(&shared, &link) {
            Ok(()) => "it was asked to end".to_owned(),
            Err(error) => why(&error, shared.silence_max),
        };
        shared.close(&link, reason);
        // Here and not in `close`: only now does this thread set no pin any more.
        shared.store.unpin(&link.pin());
    })
}

impl Shared {
    fn close(&self, link: &Link, reason: String) {
        {
            let mut closed = link.closed.lock();
            if closed.is_some() {
                return;
            }
            *closed = Some(reason);
        }
        // Both threads of the link find the socket closed.
        let _ = link.stream.shutdown(Shutdown::Both);
        self.store.wake_followers();
        self.notice.set();
    }

    /// The sender thread of a link.
    fn send(&self, link: &Link) -> io::Result<()> {
        let mut last_write = Instant::now();
        while !link.is_closed() {
            let sent = link.sent.load(Ordering::SeqCst);
            let confirmed = self.store.confirmed_offset();
            if sent == UNKNOWN {
                std::thread::sleep(LOOK_INTERVAL);
            } else if sent < confirmed {
                self.send_bytes(link, sent, confirmed)?;
                last_write = Instant::now();
            } else if last_write.elapsed() >= BEAT_INTERVAL {
                write_frame(link, sent, &[])?;
                last_write = Instant::now();
            } else if sent >= self.store.end_offset() {
                self.store.follow(BEAT_INTERVAL, || self.store.end_offset() > sent || link.is_closed());
            } else if !self.store.wait_confirmed(sent + 1, LOOK_INTERVAL) {
                // A store that cannot sync any more answers at once.
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        Ok(())
    }

    fn send_bytes(&self, link: &Link, from: i64, confirmed: i64) -> io::Result<()> {
        let bytes_max = CHUNK_BYTES.min((confirmed - from) as usize);
        let bytes = self.store.log_bytes(from, bytes_max).ok_or_else(|| gone(from, &self.store))?;
        // A report may arrive before the write returns.
        link.sent.store(from + bytes.len() as i64, Ordering::SeqCst);
        write_frame(link, from, &bytes)?;
        if self.bytes_per_second > 0 {
            std::thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / self.bytes_per_second as f64));
        }
        Ok(())
    }

    /// The reader thread of a link.
    fn read_reports(&self, link: &Link) -> io::Result<()> {
        let mut input = BufReader::new(&link.stream);
        let mut pinned = UNKNOWN;
        while !link.is_closed() {
            let mut report = [0; 8];
            input.read_exact(&mut report)?;
            let reported = i64::from_be_bytes(report);
            link.heard_ms.store(link.opened.elapsed().as_millis() as i64, Ordering::Relaxed);
            if link.sent.load(Ordering::SeqCst) == UNKNOWN {
                pinned = self.begin(link, reported)?;
            } else {
                self.check_report(link, reported)?;
            }
            link.reported.store(reported, Ordering::SeqCst);
            if reported - pinned >= PIN_STEP_BYTES {
                self.store.pin(&link.pin(), reported);
                pinned = reported;
            }
        }
        Ok(())
    }

    /// Lets the stream begin at the first report, or with the oldest file for an empty slave.
    fn begin(&self, link: &Link, reported: i64) -> io::Result<i64> {
        // Before the check: what is there now stays there.
        self.store.pin(&link.pin(), reported.max(0));
        let (start, end) = (self.store.start_offset(), self.store.end_offset());
        let from = if reported == 0 { start } else { reported };
        if from > end || reported < 0 {
            return Err(bad(format!(
                "the slave reports offset {reported}, but this log ends at {end}: empty the slave's store"
            )));
        }
        if from < start {
            return Err(gone(from, &self.store));
        }
        self.store.pin(&link.pin(), from);
        link.sent.store(from, Ordering::SeqCst);
        Ok(from)
    }

    fn check_report(&self, link: &Link, reported: i64) -> io::Result<()> {
        let (before, sent) = (link.reported.load(Ordering::SeqCst), link.sent.load(Ordering::SeqCst));
        if reported < before || reported > sent {
            return Err(bad(format!(
                "the slave reports offset {reported} after {before}, and {sent} was sent"
            )));
        }
        Ok(())
    }
}

fn gone(physical_offset: i64, store: &Store) -> io::Error {
    let start = store.start_offset();
    io::Error::other(if physical_offset < start {
        format!(
            "the slave needs offset {physical_offset}, but this log begins at {start}: empty the slave's store"
        )
    } else {
        format!("the slave needs offset {physical_offset}, but this broker has lost the file that holds it")
    })
}

fn write_frame(link: &Link, physical_offset: i64, bytes: &[u8]) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&physical_offset.to_be_bytes());
    head[8..].copy_from_slice(&(bytes.len() as i32).to_be_bytes());
    let mut stream = &link.stream;
    stream.write_all(&head)?;
    stream.write_all(bytes)
}

impl Link {
    fn is_closed(&self) -> bool {
        self.closed.lock().is_some()
    }

    fn pin(&self) -> String {
        format!("Apache slave {}", self.id)
    }

    fn figures(&self) -> ApacheSlaveFigures {
        ApacheSlaveFigures {
            id: self.id,
            remote: self.remote.clone(),
            sent: self.sent.load(Ordering::Relaxed),
            reported: self.reported.load(Ordering::Relaxed),
            silent_ms: self.opened.elapsed().as_millis() as i64 - self.heard_ms.load(Ordering::Relaxed),
            closed: self.closed.lock().clone(),
        }
    }
}
