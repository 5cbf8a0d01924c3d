//! A replica's end: it appends what its master sends, shows what its master has confirmed, and acknowledges what it
//! holds.

use std::collections::VecDeque;
use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use metaq_store::{CopyPermit, Store, StoreError};
use parking_lot::{Condvar, Mutex};

use crate::notice::Notice;
use crate::replicate::frame::{BodyLimits, Frame, bad};
use crate::replicate::hub::why;
use crate::replicate::{ReplicationSettings, StatePosition, join_soon};

const READ_BUFFER_BYTES: usize = 256 << 10;
const BUSY: i64 = -1;

/// A link to a master, from its start to its end.
pub struct Follower {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<Store>,
    permit: CopyPermit,
    settings: ReplicationSettings,
    epoch: u64,
    stream: TcpStream,
    opened: Instant,
    /// Since when it has been waiting for the master, or `BUSY` while it handles what came.
    waits_since_ms: AtomicI64,
    master_end: AtomicI64,
    confirmed: AtomicI64,
    state: Mutex<StateQueue>,
    state_taken: Condvar,
    has_acknowledged_state: AtomicBool,
    last_acknowledgement: Mutex<Acknowledgement>,
    notice: Notice,
    /// The offset at which the master sent a damaged record, or −1.
    refused: AtomicI64,
    is_closed: AtomicBool,
    closed: Mutex<Option<String>>,
}

#[derive(Default)]
struct StateQueue {
    waiting: VecDeque<(StatePosition, Bytes)>,
    bytes: usize,
    acknowledged: StatePosition,
}

/// The last acknowledgement that was written.
struct Acknowledgement {
    held: i64,
    at: Instant,
}

/// A replica's link in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowerFigures {
    pub master_end: i64,
    pub confirmed: i64,
    /// For how long it has waited for the master in vain. While its own disk or event loop holds it up, it cannot hear
    /// the master, so that does not count.
    pub silent_ms: i64,
    /// The offset at which the master sent a damaged record.
    pub refused: Option<i64>,
    /// Why the link was closed; None while it lives.
    pub closed: Option<String>,
}

impl Follower {
    /// Follows the master at the other end of the socket, from the end of the store's log on. The store shows nothing
    /// that the master has not confirmed. `state` is the position of the control state that is on the disk already.
    pub fn start(
        stream: TcpStream,
        store: Arc<Store>,
        settings: ReplicationSettings,
        epoch: u64,
        state: StatePosition,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(settings.silence_max))?;
        stream.set_write_timeout(Some(settings.silence_max))?;
        // Until the master has said where its log begins, nothing is deleted.
        store.follow_retention(0);
        let shared = Arc::new(Shared {
            store,
            permit: CopyPermit::default(),
            last_acknowledgement: Mutex::new(Acknowledgement {
                held: -1,
                at: Instant::now() - settings.beat_interval,
            }),
            settings,
            epoch,
            stream,
            opened: Instant::now(),
            waits_since_ms: AtomicI64::new(0),
            master_end: AtomicI64::new(0),
            confirmed: AtomicI64::new(0),
            state: Mutex::new(StateQueue { acknowledged: state, ..StateQueue::default() }),
            state_taken: Condvar::new(),
            has_acknowledged_state: AtomicBool::new(false),
            notice: Notice::new()?,
            refused: AtomicI64::new(-1),
            is_closed: AtomicBool::new(false),
            closed: Mutex::new(None),
        });
        let threads = vec![
            spawn("metaq-repl-recv", &shared, Shared::receive)?,
            spawn("metaq-repl-held", &shared, Shared::acknowledge_syncs)?,
        ];
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Becomes readable when control state has arrived or the link was closed.
    pub fn fileno(&self) -> i32 {
        self.shared.notice.fileno()
    }

    /// The control state that has arrived since the last call.
    pub fn take_state(&self) -> Vec<(StatePosition, Bytes)> {
        self.shared.notice.clear();
        let mut state = self.shared.state.lock();
        state.bytes = 0;
        self.shared.state_taken.notify_all();
        state.waiting.drain(..).collect()
    }

    /// Tells the master that control state up to there is on the disk.
    pub fn acknowledge_state(&self, position: StatePosition) {
        self.shared.state.lock().acknowledged = position;
        self.shared.has_acknowledged_state.store(true, Ordering::SeqCst);
        self.shared.store.wake_followers();
    }

    pub fn figures(&self) -> FollowerFigures {
        let shared = &self.shared;
        let relaxed = Ordering::Relaxed;
        FollowerFigures {
            master_end: shared.master_end.load(relaxed),
            confirmed: shared.confirmed.load(relaxed),
            silent_ms: shared.silent_ms(),
            refused: Some(shared.refused.load(relaxed)).filter(|refused| *refused >= 0),
            closed: shared.closed.lock().clone(),
        }
    }

    /// Ends the link. Nothing more is appended, shown or acknowledged through it when this returns. It waits neither for
    /// the master nor for the disk.
    pub fn stop(&self) {
        self.shared.close("it was asked to end".to_owned());
        self.shared.permit.revoke();
        join_soon(std::mem::take(&mut *self.threads.lock()));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    work: fn(&Shared) -> io::Result<()>,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(error) = work(&shared) {
            shared.close(why(&error, &shared.settings));
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
        // Under the lock, so that a reader about to wait does not miss it.
        drop(self.state.lock());
        self.state_taken.notify_all();
        self.store.wake_followers();
        self.notice.set();
    }

    fn silent_ms(&self) -> i64 {
        match self.waits_since_ms.load(Ordering::Relaxed) {
            BUSY => 0,
            since => self.opened.elapsed().as_millis() as i64 - since,
        }
    }

    fn receive(&self) -> io::Result<()> {
        let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, &self.stream);
        let mut body = Vec::new();
        let limits = BodyLimits {
            log: self.settings.chunk_bytes.max(self.store.record_bytes_max()),
            state: self.settings.state_bytes_max,
        };
        while !self.is_closed.load(Ordering::SeqCst) {
            self.waits_since_ms.store(self.opened.elapsed().as_millis() as i64, Ordering::Relaxed);
            let frame = Frame::read(&mut input, &mut body, &limits)?;
            self.waits_since_ms.store(BUSY, Ordering::Relaxed);
            match frame {
                Frame::Log { epoch, physical_offset, confirmed } => {
                    self.check_epoch(epoch)?;
                    let end = self
                        .store
                        .append_raw_while(&self.permit, physical_offset, &body)
                        .map_err(|error| self.note_refused(error))?;
                    self.store.dispatch();
                    self.show(end, confirmed);
                }
                Frame::Beat { epoch, start_offset, end_offset, confirmed } => {
                    self.check_epoch(epoch)?;
                    self.store.follow_retention(start_offset);
                    self.show(end_offset, confirmed);
                }
                Frame::State { position } => self.keep_state(position, Bytes::copy_from_slice(&body)),
                Frame::Ack { .. } => return Err(bad("an acknowledgement".to_owned())),
            }
            // With asynchronous flush this is the moment that the master waits for. If more frames have arrived, one
            // acknowledgement after the last of them is enough.
            if input.buffer().is_empty() {
                self.acknowledge()?;
            }
        }
        Ok(())
    }

    fn note_refused(&self, error: StoreError) -> io::Error {
        if let StoreError::BadRawBytes { physical_offset, .. } = &error {
            self.refused.store(*physical_offset, Ordering::Relaxed);
        }
        io::Error::other(error)
    }

    fn check_epoch(&self, epoch: u64) -> io::Result<()> {
        if epoch > self.epoch {
            return Err(bad(format!(
                "bytes of epoch {epoch}, which it did not name; its own is {}",
                self.epoch
            )));
        }
        Ok(())
    }

    /// Shows what the master has confirmed.
    fn show(&self, master_end: i64, confirmed: i64) {
        self.master_end.fetch_max(master_end, Ordering::Relaxed);
        if confirmed > self.confirmed.fetch_max(confirmed, Ordering::Relaxed) {
            {
                let Ok(_allowed) = self.permit.hold() else { return };
                self.store.move_gate(confirmed);
            }
            self.store.confirm_safe();
        }
    }

    /// Hands control state to Python; waits while too much of it waits there.
    fn keep_state(&self, position: StatePosition, entry: Bytes) {
        let mut state = self.state.lock();
        while state.bytes > self.settings.state_bytes_max && !self.is_closed.load(Ordering::SeqCst) {
            self.state_taken.wait(&mut state);
        }
        state.bytes += entry.len();
        state.waiting.push_back((position, entry));
        drop(state);
        self.notice.set();
    }

    /// The thread that acknowledges what a sync or Python has brought to the disk, and sends a beat when one is due.
    fn acknowledge_syncs(&self) -> io::Result<()> {
        while !self.is_closed.load(Ordering::SeqCst) {
            let acknowledged = self.acknowledge()?;
            self.store.follow_syncs(self.settings.beat_interval, || {
                self.store.held_offset() > acknowledged
                    || self.has_acknowledged_state.load(Ordering::SeqCst)
                    || self.is_closed.load(Ordering::SeqCst)
            });
        }
        Ok(())
    }

    /// Writes an acknowledgement if more is held than the last one said, or a beat is due. Returns what the last one
    /// said.
    fn acknowledge(&self) -> io::Result<i64> {
        let mut last = self.last_acknowledgement.lock();
        let held = self.store.held_offset();
        let has_state = self.has_acknowledged_state.swap(false, Ordering::SeqCst);
        if held > last.held || has_state || last.at.elapsed() >= self.settings.beat_interval {
            let state = self.state.lock().acknowledged;
            Frame::Ack { epoch: self.epoch, held, state }.write(&mut &self.stream, &[])?;
            *last = Acknowledgement { held, at: Instant::now() };
        }
        Ok(last.held)
    }
}
