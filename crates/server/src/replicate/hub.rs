//! The master's end: its links to replicas, and the rule by which their acknowledgements confirm records.
//!
//! A record is confirmed when every node that must hold it has acknowledged it. Which nodes these are is Python's
//! decision ([`Hub::require`]); this module only takes the lowest offset over them. What a node has acknowledged stays
//! acknowledged when its link breaks.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use metaq_store::{Store, boot_time_ms};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::notice::Notice;
use crate::replicate::ack_times::AckTimes;
use crate::replicate::followers::Followers;
use crate::replicate::frame::{BodyLimits, Frame, bad};
use crate::replicate::{ReplicationSettings, StatePosition, join_soon};

/// While records wait for confirmation, an idle sender looks this often whether there is news for its replica.
const CONFIRMED_INTERVAL: Duration = Duration::from_millis(10);
/// A pin moves when it is at least this far behind.
const PIN_STEP_BYTES: i64 = 1 << 20;
/// Beats for which a node must be heard after too long a silence, before it counts as a follower again.
const SETTLE_BEATS: u32 = 2;
const READ_BUFFER_BYTES: usize = 16 << 10;

/// All links of one lifetime as master, which has one epoch.
pub struct Hub {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<Store>,
    settings: ReplicationSettings,
    epoch: u64,
    /// Every epoch of the log and the physical offset at which it begins, in order.
    epochs: Vec<(u64, i64)>,
    rule: Mutex<Rule>,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    next_link: AtomicI64,
    notice: Notice,
    stopping: AtomicBool,
}

/// The nodes that must hold a record, and the offset that each node holds.
struct Rule {
    required: Vec<u32>,
    held: BTreeMap<u32, i64>,
    /// None if no other node can become master.
    followers: Option<Followers>,
}

/// One replica's connection.
struct Link {
    id: u64,
    node_id: u32,
    stream: TcpStream,
    opened: Instant,
    sent: AtomicI64,
    held: AtomicI64,
    is_required: AtomicBool,
    /// Milliseconds from `opened` to the last frame from the replica.
    heard_ms: AtomicI64,
    ack_times: AckTimes,
    state: Mutex<StateQueue>,
    has_state: AtomicBool,
    closed: Mutex<Option<String>>,
    has_closed: Condvar,
}

#[derive(Default)]
struct StateQueue {
    waiting: VecDeque<(StatePosition, Bytes)>,
    bytes: usize,
    acknowledged: StatePosition,
}

/// A link in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFigures {
    pub id: u64,
    pub node_id: u32,
    pub sent: i64,
    pub held: i64,
    pub state: StatePosition,
    /// How long ago the replica was heard.
    pub silent_ms: i64,
    /// How long it takes to acknowledge records; None without traffic.
    pub ack_ms: Option<i64>,
    /// Why the link was closed; None while it lives.
    pub closed: Option<String>,
}

impl Hub {
    /// `epochs` are the epochs of the log, the last of which is this master's.
    pub fn new(
        store: Arc<Store>,
        settings: ReplicationSettings,
        epochs: Vec<(u64, i64)>,
    ) -> io::Result<Self> {
        let epoch = epochs.last().map_or(0, |(epoch, _)| *epoch);
        let millis = |duration: Duration| duration.as_millis() as i64;
        let settle_ms = millis(settings.beat_interval * SETTLE_BEATS);
        let followers =
            settings.followed_for.map(|limit| Followers::new(boot_time_ms(), millis(limit), settle_ms));
        let rule = Rule { required: Vec::new(), held: BTreeMap::new(), followers };
        let shared = Shared {
            store,
            settings,
            epoch,
            epochs,
            rule: Mutex::new(rule),
            links: Mutex::default(),
            next_link: AtomicI64::new(1),
            notice: Notice::new()?,
            stopping: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), threads: Mutex::default() })
    }

    /// Becomes readable when a link was closed, acknowledged state, or caught up with the log.
    pub fn fileno(&self) -> i32 {
        self.shared.notice.fileno()
    }

    /// Serves a replica on a connected socket, from `from_offset` of the log on. Returns the link's number.
    pub fn add_link(&self, stream: TcpStream, node_id: u32, from_offset: i64) -> io::Result<u64> {
        let shared = &self.shared;
        if shared.stopping.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(shared.settings.silence_max))?;
        stream.set_write_timeout(Some(shared.settings.silence_max))?;
        let id = shared.next_link.fetch_add(1, Ordering::Relaxed) as u64;
        let link = Arc::new(Link {
            id,
            node_id,
            stream,
            opened: Instant::now(),
            sent: AtomicI64::new(from_offset),
            held: AtomicI64::new(0),
            is_required: AtomicBool::new(shared.rule.lock().required.contains(&node_id)),
            heard_ms: AtomicI64::new(0),
            ack_times: AckTimes::default(),
            state: Mutex::default(),
            has_state: AtomicBool::new(false),
            closed: Mutex::new(None),
            has_closed: Condvar::new(),
        });
        shared.store.pin(&link.pin(), from_offset);
        shared.links.lock().insert(id, Arc::clone(&link));
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(spawn("metaq-repl-send", shared, &link, Shared::send)?);
        threads.push(spawn("metaq-repl-ack", shared, &link, Shared::read_acknowledgements)?);
        Ok(id)
    }

    /// Sets the nodes, besides this one, that must hold a record before it is confirmed.
    pub fn require(&self, node_ids: &[u32]) {
        let shared = &self.shared;
        let mut rule = shared.rule.lock();
        rule.required = node_ids.to_vec();
        for link in shared.links.lock().values() {
            link.is_required.store(node_ids.contains(&link.node_id), Ordering::Relaxed);
        }
        shared.apply(rule);
    }

    /// Sends an entry of control state. False if the link is gone or too much waits for it already. An entry of more
    /// than `state_bytes_max` closes the link, because the replica would refuse it.
    pub fn send_state(&self, link: u64, position: StatePosition, entry: Bytes) -> bool {
        let shared = &self.shared;
        let Some(link) = shared.links.lock().get(&link).cloned() else { return false };
        if entry.len() > shared.settings.state_bytes_max {
            let limit = shared.settings.state_bytes_max;
            shared.close(
                &link,
                format!("an entry of {} bytes is larger than state_bytes_max, {limit}", entry.len()),
            );
            return false;
        }
        {
            let mut state = link.state.lock();
            if link.is_closed() || state.bytes > shared.settings.state_bytes_max {
                return false;
            }
            state.bytes += entry.len();
            state.waiting.push_back((position, entry));
        }
        link.has_state.store(true, Ordering::SeqCst);
        shared.store.wake_followers();
        true
    }

    /// The bytes of control state that wait to be sent on a link; None if the link is gone.
    pub fn state_waiting(&self, link: u64) -> Option<usize> {
        let link = self.shared.links.lock().get(&link).cloned()?;
        (!link.is_closed()).then(|| link.state.lock().bytes)
    }

    /// Every link. One that was closed is named once more and then forgotten.
    pub fn links(&self) -> Vec<LinkFigures> {
        self.shared.notice.clear();
        let mut links = self.shared.links.lock();
        let figures: Vec<LinkFigures> = links.values().map(|link| link.figures()).collect();
        links.retain(|_, link| !link.is_closed());
        figures
    }

    /// The highest offset that each node has acknowledged.
    pub fn held(&self) -> Vec<(u32, i64)> {
        self.shared.rule.lock().held.iter().map(|(node_id, held)| (*node_id, *held)).collect()
    }

    /// Ends a link, for a reason that its figures will name.
    pub fn close_link(&self, link: u64, reason: &str) {
        let link = self.shared.links.lock().get(&link).cloned();
        if let Some(link) = link {
            self.shared.close(&link, reason.to_owned());
        }
    }

    /// Ends every link and closes the gate. What is confirmed stays so; nothing more is confirmed when this returns. It
    /// waits neither for a peer nor for the disk.
    pub fn stop(&self) {
        {
            // Whoever moves the gate holds the rule.
            let _rule = self.shared.rule.lock();
            if self.shared.stopping.swap(true, Ordering::SeqCst) {
                return;
            }
            self.shared.store.close_gate();
        }
        let links: Vec<Arc<Link>> = self.shared.links.lock().values().cloned().collect();
        for link in links {
            self.shared.close(&link, "this broker is master no longer".to_owned());
        }
        join_soon(std::mem::take(&mut *self.threads.lock()));
    }
}

impl Drop for Hub {
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
            Err(error) => why(&error, &shared.settings),
        };
        shared.close(&link, reason);
        // Here and not in `close`, because it may have to wait for retention, and that for the disk.
        shared.store.unpin(&link.pin());
    })
}

/// An error of a link in words.
pub fn why(error: &io::Error, settings: &ReplicationSettings) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer has closed the connection".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the peer was silent for {} ms", settings.silence_max.as_millis())
        }
        io::ErrorKind::InvalidData => format!("the peer sent {error}"),
        _ => error.to_string(),
    }
}

impl Shared {
    fn close(&self, link: &Link, reason: String) {
        {
            let mut closed = link.closed.lock();
            if closed.is_some() {
                return;
            }
            *closed = Some(reason);
            link.has_closed.notify_all();
        }
        // Both threads of the link find the socket closed.
        let _ = link.stream.shutdown(Shutdown::Both);
        self.store.wake_followers();
        self.notice.set();
    }

    /// The sender thread of a link.
    fn send(&self, link: &Link) -> io::Result<()> {
        let mut stream = &link.stream;
        let mut told_confirmed = -1;
        let mut told_start = -1;
        let mut last_write = Instant::now() - self.settings.beat_interval;
        while !link.is_closed() {
            // The end is read first: control state that was queued before a record was appended then reaches the
            // replica before that record.
            let end = self.store.end_offset();
            if self.send_states(link)? {
                last_write = Instant::now();
            }
            let sent = link.sent.load(Ordering::Relaxed);
            let confirmed = self.store.confirmed_offset();
            let start = self.store.start_offset();
            if sent < end && start == told_start {
                let bytes = self.next_bytes(sent, end)?;
                let frame = Frame::Log { epoch: self.epoch_at(sent), physical_offset: sent, confirmed };
                // An acknowledgement may arrive before the write returns.
                link.sent.store(sent + bytes.len() as i64, Ordering::SeqCst);
                link.ack_times.sent(sent + bytes.len() as i64, Instant::now());
                frame.write(&mut stream, &bytes)?;
                (told_confirmed, last_write) = (confirmed, Instant::now());
                self.throttle(link, bytes.len());
                continue;
            }
            let is_due = last_write.elapsed() >= self.settings.beat_interval;
            let has_news = confirmed > told_confirmed && last_write.elapsed() >= CONFIRMED_INTERVAL;
            if is_due || has_news || start != told_start {
                Frame::Beat { epoch: self.epoch, start_offset: start, end_offset: sent, confirmed }
                    .write(&mut stream, &[])?;
                (told_start, told_confirmed, last_write) = (start, confirmed, Instant::now());
                continue;
            }
            let pause = if told_confirmed < sent { CONFIRMED_INTERVAL } else { self.settings.beat_interval };
            self.store.follow(pause, || {
                self.store.end_offset() > sent || link.has_state.load(Ordering::SeqCst) || link.is_closed()
            });
        }
        Ok(())
    }

    /// Sends the control state that waits; whether there was any.
    fn send_states(&self, link: &Link) -> io::Result<bool> {
        if !link.has_state.swap(false, Ordering::SeqCst) {
            return Ok(false);
        }
        loop {
            let next = {
                let mut state = link.state.lock();
                let next = state.waiting.pop_front();
                state.bytes -= next.as_ref().map_or(0, |(_, entry)| entry.len());
                next
            };
            let Some((position, entry)) = next else { return Ok(true) };
            Frame::State { position }.write(&mut &link.stream, &entry)?;
        }
    }

    /// Whole records from there on, all of one epoch, but none beyond `end`.
    fn next_bytes(&self, from: i64, end: i64) -> io::Result<Bytes> {
        let bytes = self.store.raw_bytes(from, self.settings.chunk_bytes).ok_or_else(|| {
            io::Error::other(format!("the log no longer has offset {from}: the replica must start over"))
        })?;
        let next_epoch = self.epochs.iter().map(|(_, start)| *start).find(|start| *start > from);
        let end = next_epoch.map_or(end, |start| end.min(start));
        Ok(bytes.slice(..bytes.len().min((end - from) as usize)))
    }

    fn epoch_at(&self, physical_offset: i64) -> u64 {
        let reached = self.epochs.iter().take_while(|(_, start)| *start <= physical_offset);
        reached.last().map_or(self.epoch, |(epoch, _)| *epoch)
    }

    /// Leaves time for others after a write to a replica that nobody waits for.
    fn throttle(&self, link: &Link, bytes: usize) {
        let limit = self.settings.catch_up_bytes_per_second;
        if limit > 0 && !link.is_required.load(Ordering::Relaxed) {
            link.pause(Duration::from_secs_f64(bytes as f64 / limit as f64));
        }
    }

    /// The reader thread of a link.
    fn read_acknowledgements(&self, link: &Link) -> io::Result<()> {
        let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, &link.stream);
        let mut body = Vec::new();
        // A replica sends acknowledgements only.
        let limits = BodyLimits { log: 0, state: 0 };
        let mut pinned = link.sent.load(Ordering::Relaxed);
        while !link.is_closed() {
            let Frame::Ack { epoch, held, state } = Frame::read(&mut input, &mut body, &limits)? else {
                return Err(bad("something else than an acknowledgement".to_owned()));
            };
            let sent = link.sent.load(Ordering::SeqCst);
            if epoch != self.epoch {
                return Err(bad(format!("an acknowledgement of epoch {epoch}, this is {}", self.epoch)));
            }
            if held > sent || held < link.held.load(Ordering::Relaxed) {
                return Err(bad(format!("an acknowledgement of {held}, {sent} was sent")));
            }
            link.heard_ms.store(link.opened.elapsed().as_millis() as i64, Ordering::Relaxed);
            link.held.store(held, Ordering::Relaxed);
            link.ack_times.acknowledged(held, Instant::now());
            self.acknowledge(link.node_id, held);
            let has_more_state = {
                let mut queue = link.state.lock();
                std::mem::replace(&mut queue.acknowledged, state) != state
            };
            if has_more_state || held == self.store.end_offset() {
                self.notice.set();
            }
            if held - pinned >= PIN_STEP_BYTES {
                self.store.pin(&link.pin(), held);
                pinned = held;
            }
        }
        Ok(())
    }

    fn acknowledge(&self, node_id: u32, held: i64) {
        let mut rule = self.rule.lock();
        let known = rule.held.entry(node_id).or_insert(held);
        *known = held.max(*known);
        if let Some(followers) = &mut rule.followers {
            followers.heard(node_id, boot_time_ms());
        }
        self.apply(rule);
    }

    /// Confirms what everybody holds who must. The lock on the rule keeps an older result from replacing a newer one. It
    /// is not held while the store confirms, which may have to wait for the disk.
    fn apply(&self, rule: MutexGuard<'_, Rule>) {
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let held = rule.required.iter().map(|node_id| rule.held.get(node_id).copied().unwrap_or(0));
        // Without replicas the own disk alone decides; `i64::MAX` would take the gate away.
        self.store.move_gate(held.min().unwrap_or(i64::MAX - 1));
        if let Some(followers) = &rule.followers {
            self.store.note_followed(followers.until_ms(&rule.required));
        }
        drop(rule);
        self.store.confirm_safe();
    }
}

impl Link {
    fn is_closed(&self) -> bool {
        self.closed.lock().is_some()
    }

    /// Sleeps, but not longer than the link lives.
    fn pause(&self, pause: Duration) {
        let deadline = Instant::now() + pause;
        let mut closed = self.closed.lock();
        while closed.is_none() && !self.has_closed.wait_until(&mut closed, deadline).timed_out() {}
    }

    fn pin(&self) -> String {
        format!("replica link {}", self.id)
    }

    fn figures(&self) -> LinkFigures {
        LinkFigures {
            id: self.id,
            node_id: self.node_id,
            sent: self.sent.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            state: self.state.lock().acknowledged,
            silent_ms: self.opened.elapsed().as_millis() as i64 - self.heard_ms.load(Ordering::Relaxed),
            ack_ms: self.ack_times.recent_ms(Instant::now()),
            closed: self.closed.lock().clone(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::{Clock, StoreSettings, SystemDisk};
    use metaq_wire::{NewRecord, body_crc};

    use super::*;

    /// The sender reads the log's end, then sends control state. Records that are appended meanwhile have to wait, or they
    /// would overtake state that was queued before them.
    #[test]
    fn the_log_is_sent_up_to_the_end_that_was_read_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let settings = StoreSettings {
            commit_log_file_bytes: 1 << 16,
            sync_flush: false,
            ..StoreSettings::new(directory.path())
        };
        let store = Store::open(settings, Clock::system(), Arc::new(SystemDisk)).unwrap();
        let host = ([127, 0, 0, 1], 10911).into();
        let ends: Vec<i64> = (0..4)
            .map(|_| {
                let record = NewRecord {
                    topic: b"t",
                    queue_id: 0,
                    flag: 0,
                    system_flag: 0,
                    born_timestamp_ms: 7,
                    born_host: host,
                    store_host: host,
                    reconsume_times: 0,
                    prepared_transaction_offset: 0,
                    body: b"x",
                    body_crc: body_crc(b"x"),
                    properties: [b"", b"", b""],
                };
                store.append(&record).unwrap().end_offset
            })
            .collect();
        let replication = ReplicationSettings {
            beat_interval: Duration::from_secs(1),
            silence_max: Duration::from_secs(1),
            chunk_bytes: 1 << 20,
            followed_for: None,
            catch_up_bytes_per_second: 0,
            state_bytes_max: 1 << 20,
        };
        let hub = Hub::new(store, replication, vec![(1, 0), (2, ends[2])]).unwrap();
        assert_eq!(hub.shared.next_bytes(0, ends[0]).unwrap().len() as i64, ends[0]);
        assert_eq!(hub.shared.next_bytes(0, ends[3]).unwrap().len() as i64, ends[2], "one epoch only");
        assert_eq!(hub.shared.next_bytes(ends[2], ends[3]).unwrap().len() as i64, ends[3] - ends[2]);
    }
}
