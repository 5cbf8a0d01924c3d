//! A listener and its connections: binding, accepting, taking care of them, and the orderly end.
//!
//! A listener lives as long as its process. The broker plane that answers its hot requests ([`crate::plane`]) may come
//! and go meanwhile: each pass over a connection's frames loads the attached plane once and works with that one.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};
use foldhash::fast::RandomState;
use metaq_wire::{Encoding, FLAG_ONEWAY, FrameEncoder};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::ServerError;
use crate::broker::Broker;
use crate::metrics::slow_requests::SlowRequests;
use crate::net::answers::Answers;
use crate::net::connection;
use crate::net::counts::{Counts, ListenerFigures};
use crate::net::crossing::{Crossing, CrossingLimits, Event};
use crate::net::crowds::{Crowd, Crowds, Places};
use crate::net::held_appends::HeldAppends;
use crate::net::making_way;
use crate::net::memory::{Memory, PeerMemory};
use crate::net::newcomers::Newcomers;
use crate::net::output::Body;
use crate::net::peer::Peer;
use crate::net::relay::Relay;
use crate::settings::ServerSettings;

const LISTEN_BACKLOG: i32 = 1024;
/// Interval between two looks at deadlines.
const CARE_INTERVAL: Duration = Duration::from_millis(100);
/// Clients up to 4.4 send to this many ports below the broker's.
const OLD_PORT_BELOW: u16 = 2;
/// Free ports tried for a pair when the port was left open.
const PORT_PAIR_TRIES: usize = 64;
/// A connection is asked once or twice to give its buffers back after it has been silent for this long.
const QUIET_MS: Range<u64> = 1_000..1_000 + 2 * CARE_INTERVAL.as_millis() as u64;
/// The same while memory is scarce.
const SCARCE_QUIET_MS: Range<u64> = 100..QUIET_MS.end;
/// The least time between two looks for the worst peers while the budget is nearly used up.
const CUT_PAUSE: Duration = Duration::from_millis(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A plane that stops waits at most this long for its connections to answer; none should take this long.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_POLL: Duration = Duration::from_micros(200);

/// The side that answers the hot requests of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotRequests {
    /// Python: they cross like all others. For name servers.
    Cross,
    /// The attached broker plane. While there is none, they are refused.
    Plane,
}

/// The plane that answers hot requests now. Nothing but passes over requests holds one of these, and only for as long
/// as they last: once it has been replaced, the number of its holders tells whether a pass is still under way.
pub struct Attached {
    pub broker: Arc<Broker>,
}

/// The state that all connections of a listener share.
pub struct Shared {
    pub settings: ServerSettings,
    pub crossing: Crossing,
    pub slow_requests: SlowRequests,
    pub(crate) memory: Arc<Memory>,
    hot: HotRequests,
    attached: ArcSwapOption<Attached>,
    attaching: Mutex<()>,
    pub(crate) relay: Relay,
    pub(crate) held_appends: HeldAppends,
    /// Set when connections are accepted.
    pub(crate) runtime: OnceLock<Handle>,
    /// The plane that is being stopped: answers may still wait for its store.
    leaving: ArcSwapOption<Broker>,
    peers: Mutex<HashMap<u64, Arc<Peer>, RandomState>>,
    per_address: Mutex<HashMap<IpAddr, usize, RandomState>>,
    newcomers: Newcomers,
    crowd: Mutex<Crowd>,
    /// The sums of connections that have ended.
    ended: Counts,
    next_peer: AtomicU64,
    next_opaque: AtomicI32,
    stopping: AtomicBool,
}

/// A bound listener; connections are accepted from `start` on.
pub struct Listener {
    pub shared: Arc<Shared>,
    sockets: Mutex<Vec<StdListener>>,
    port: u16,
    old_port: Option<u16>,
    runtime: Mutex<Option<Runtime>>,
}

impl Listener {
    pub fn bind(mut settings: ServerSettings, hot: HotRequests) -> Result<Self, ServerError> {
        // A longer frame could wait for its memory for ever.
        settings.frame_bytes_max = settings.frame_bytes_max.min(settings.memory_bytes_max / 2);
        let (socket, old_socket) = bind_all(&settings)?;
        let port = local_port(&socket);
        let old_port = old_socket.as_ref().map(local_port);
        let crossing = Crossing::new(CrossingLimits {
            requests_max: settings.crossing_requests_max,
            bytes_max: settings.crossing_bytes_max,
            requests_per_connection_max: settings.crossing_requests_per_connection_max,
            bytes_per_connection_max: settings.crossing_bytes_per_connection_max,
            age_ms_max: settings.crossing_age_ms_max,
        })
        .map_err(ServerError::Threads)?;
        let shared = Shared {
            relay: Relay::new(&settings),
            held_appends: HeldAppends::new(&settings),
            runtime: OnceLock::new(),
            memory: Memory::new(settings.memory_bytes_max, settings.group_memory_bytes_max),
            newcomers: Newcomers::new(settings.connections_silent_max),
            settings,
            crossing,
            slow_requests: SlowRequests::default(),
            hot,
            attached: ArcSwapOption::empty(),
            attaching: Mutex::new(()),
            leaving: ArcSwapOption::empty(),
            peers: Mutex::default(),
            per_address: Mutex::default(),
            crowd: Mutex::default(),
            ended: Counts::default(),
            next_peer: AtomicU64::new(1),
            next_opaque: AtomicI32::new(1),
            stopping: AtomicBool::new(false),
        };
        Ok(Listener {
            shared: Arc::new(shared),
            sockets: Mutex::new(std::iter::once(socket).chain(old_socket).collect()),
            port,
            old_port,
            runtime: Mutex::new(None),
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn old_port(&self) -> Option<u16> {
        self.old_port
    }

    pub fn start(&self) -> Result<(), ServerError> {
        let mut runtime = self.runtime.lock();
        if runtime.is_some() || self.shared.stopping.load(Relaxed) {
            return Ok(());
        }
        let started = Builder::new_multi_thread()
            .worker_threads(self.shared.settings.worker_threads.max(1))
            .thread_name("metaq-net")
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let _inside = started.enter();
        for socket in self.sockets.lock().drain(..) {
            let socket = TcpListener::from_std(socket).map_err(ServerError::Threads)?;
            started.spawn(accept(Arc::clone(&self.shared), socket));
        }
        started.spawn(take_care(Arc::clone(&self.shared)));
        drop(_inside);
        let _set_once = self.shared.runtime.set(started.handle().clone());
        *runtime = Some(started);
        Ok(())
    }

    /// Stops accepting, writes what is due and closes; waits at most `timeout`. Stop the broker plane first: it answers
    /// whatever still waits.
    pub fn stop(&self, timeout: Duration) {
        self.shared.stopping.store(true, Relaxed);
        self.sockets.lock().clear();
        let Some(runtime) = self.runtime.lock().take() else {
            return;
        };
        let deadline = Instant::now() + timeout;
        for peer in self.shared.peers() {
            peer.close();
        }
        while !self.shared.peers.lock().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        runtime.shutdown_timeout(deadline.saturating_duration_since(Instant::now()));
    }

    /// Sends a request to a client and returns the opaque by which its answer will be known.
    pub fn invoke(
        &self,
        connection: u64,
        code: i32,
        fields: &[(String, String)],
        body: bytes::Bytes,
        oneway: bool,
    ) -> Result<i32, ServerError> {
        let peer = self.shared.peers.lock().get(&connection).cloned();
        let peer = peer.ok_or(ServerError::ConnectionGone(connection))?;
        let opaque = self.shared.next_opaque.fetch_add(1, Relaxed);
        let flag = if oneway { FLAG_ONEWAY } else { 0 };
        let mut answers = Answers::default();
        let mut frame = FrameEncoder::request(answers.output.tail(), Encoding::Json, code, opaque, flag);
        for (name, value) in fields {
            frame.field(name, value);
        }
        frame.finish(body.len()).map_err(ServerError::Frame)?;
        answers.output.append(Body::Owned(body));
        peer.post(answers)?;
        Ok(opaque)
    }

    /// Relays requests of a replica to the master at this `host:port` from now on; None relays nothing.
    pub fn set_relay(&self, address: Option<&str>) -> Result<(), ServerError> {
        self.shared.relay.set_master(address)
    }

    /// Counts bytes that the control plane keeps for a group; fewer than none if it keeps less.
    pub fn count_group_memory(&self, group: &str, bytes: i64) {
        let groups = &self.shared.memory.groups;
        let count = usize::try_from(bytes.unsigned_abs()).unwrap_or(usize::MAX);
        if bytes >= 0 { groups.add(group, count) } else { groups.remove(group, count) }
    }

    pub fn figures(&self) -> ListenerFigures {
        let sum = Counts::default();
        // Under the lock: what a connection did is among the living or among the ended, never in between.
        let peers = self.shared.peers.lock();
        self.shared.ended.add_to(&sum);
        for peer in peers.values() {
            peer.counts.add_to(&sum);
        }
        sum.figures(peers.len() as u64, &self.shared.memory)
    }
}

impl Shared {
    /// The plane that answers hot requests. Load it once for a pass, and do not keep it beyond.
    pub(crate) fn plane(&self) -> Guard<Option<Arc<Attached>>> {
        self.attached.load()
    }

    /// Whether this is a broker's listener, whose hot requests never cross for lack of a plane.
    pub(crate) fn serves_broker(&self) -> bool {
        self.hot == HotRequests::Plane
    }

    /// The broker whose store decides about answers that wait for the disk.
    pub(crate) fn answering(&self) -> Option<Arc<Broker>> {
        let attached = self.plane().as_ref().map(|plane| Arc::clone(&plane.broker));
        // A plane that leaves is put there before it is taken from here, so it is found in one of the two.
        attached.or_else(|| self.leaving.load_full())
    }

    pub(crate) fn is_free(&self) -> bool {
        self.plane().is_none()
    }

    /// Lets a plane answer the hot requests from now on; false if there is one already.
    pub(crate) fn attach(&self, broker: &Arc<Broker>) -> bool {
        let _one_at_a_time = self.attaching.lock();
        if !self.is_free() {
            return false;
        }
        // First, because the first request may already wait for an arrival or a flush.
        broker.follow_store();
        self.attached.store(Some(Arc::new(Attached { broker: Arc::clone(broker) })));
        true
    }

    /// Refuses hot requests from now on, and returns once no pass over requests uses the plane any more. Returns
    /// false if the plane was not attached.
    pub(crate) fn detach(&self, broker: &Arc<Broker>) -> bool {
        let attaching = self.attaching.lock();
        let attached = self.attached.load_full();
        let Some(attached) = attached.filter(|plane| Arc::ptr_eq(&plane.broker, broker)) else {
            return false;
        };
        self.leaving.store(Some(Arc::clone(broker)));
        // This counts the passes under way among the plane's holders.
        self.attached.store(None);
        drop(attaching);
        wait_unused(attached);
        true
    }

    /// Returns once no pass is under way that began before the call.
    pub(crate) fn finish_passes(&self) {
        let attaching = self.attaching.lock();
        let Some(attached) = self.attached.load_full() else {
            return;
        };
        self.attached.store(Some(Arc::new(Attached { broker: Arc::clone(&attached.broker) })));
        drop(attaching);
        wait_unused(attached);
    }

    /// Makes every connection answer its unconfirmed requests: as stored if they are confirmed by now, as timed out
    /// otherwise. After this nothing refers to the plane that was detached.
    pub(crate) fn answer_unconfirmed(&self) {
        let peers = self.peers();
        for peer in &peers {
            peer.answers_unconfirmed.store(true, SeqCst);
            peer.wake();
        }
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let is_done = |peer: &Arc<Peer>| !peer.answers_unconfirmed.load(SeqCst) || peer.is_closing();
        while !peers.iter().all(is_done) && Instant::now() < deadline && !self.stopping.load(Relaxed) {
            std::thread::sleep(ANSWER_POLL);
        }
        self.leaving.store(None);
    }

    fn crowds(&self) -> Crowds {
        let settings = &self.settings;
        let places =
            Places { in_all: settings.connections_max, per_address: settings.connections_per_address_max };
        let connections = self.peers.lock().len();
        Crowds::of(connections, &self.per_address.lock(), places, settings.idle_timeout_ms)
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Makes a connection give its place to a newcomer: one of the network that has most, or else one that has sent no frame
    /// yet. False if none does.
    fn make_way(&self, newcomer: IpAddr) -> bool {
        let mut crowd = self.crowd.lock();
        let least_used = crowd.take_least_used(newcomer, Instant::now(), || self.peers());
        let Some(peer) = least_used else {
            // A newcomer from a large network must not take the place of those who have just come from another one.
            let oldest =
                self.newcomers.take_oldest(|network| crowd.count_of(network) >= crowd.count_of(newcomer));
            oldest.iter().for_each(|oldest| oldest.close_silent());
            return oldest.is_some();
        };
        if !peer.has_spoken() {
            self.newcomers.remove(&peer);
            peer.close_silent();
            return true;
        }
        peer.cut(|| {
            format!(
                "all {} places are taken (connections_max), its network has most of them, and it has sent the fewest requests",
                self.settings.connections_max
            )
        });
        true
    }

    /// Admits a socket if the limits allow it, or if another connection makes way for it.
    fn admit(self: &Arc<Self>, stream: TcpStream, remote: SocketAddr) {
        let is_full = self.peers.lock().len() >= self.settings.connections_max;
        if is_full && !self.make_way(remote.ip()) {
            return;
        }
        {
            let mut per_address = self.per_address.lock();
            let count = per_address.entry(remote.ip()).or_default();
            if *count >= self.settings.connections_per_address_max {
                let Some(oldest) = self.newcomers.take_oldest_of(remote.ip()) else { return };
                oldest.close_silent();
            }
            *count += 1;
        }
        let _best_effort = stream.set_nodelay(true);
        let id = self.next_peer.fetch_add(1, Relaxed);
        let memory = PeerMemory::new(&self.memory, self.settings.connection_memory_bytes_max);
        let peer = Arc::new(Peer::new(id, remote, memory));
        self.peers.lock().insert(id, Arc::clone(&peer));
        if let Some(oldest) = self.newcomers.add(&peer) {
            oldest.give_way();
        }
        tokio::spawn(connection::run(Arc::clone(self), stream, peer));
    }

    /// Notes that a connection has sent its first frame.
    #[cold]
    pub(crate) fn greet(&self, peer: &Peer) {
        peer.mark_spoken();
        self.newcomers.remove(peer);
    }

    /// Ends a connection: nothing waits for it any longer, and Python hears of it.
    pub(crate) fn forget(&self, peer: &Arc<Peer>) {
        if !peer.has_spoken() {
            self.newcomers.remove(peer);
        }
        {
            let mut peers = self.peers.lock();
            peers.remove(&peer.id);
            peer.counts.add_to(&self.ended);
        }
        let mut per_address = self.per_address.lock();
        if let Some(count) = per_address.get_mut(&peer.remote.ip()) {
            *count -= 1;
            if *count == 0 {
                per_address.remove(&peer.remote.ip());
            }
        }
        drop(per_address);
        if let Some(plane) = self.plane().as_ref() {
            plane.broker.pulls.drop_peer(peer);
        }
        let _never_refused = self.crossing.offer(Event::Closed(Arc::clone(peer)));
    }
}

impl Shared {
    /// Closes peers until the budget has some room again, in the order of [`making_way`]. Peers that trickle a long frame are
    /// closed before that, because others wait for their memory. For a long frame that waits, only peers that do not read
    /// their answers are closed.
    fn cut_worst(&self) {
        let wanted = self.memory.take_wanted();
        if wanted == 0 && !self.memory.is_scarce() {
            return;
        }
        let peers = making_way::in_order(self.peers(), self.memory.bytes_max());
        for peer in peers.iter().filter(|peer| making_way::is_trickling(peer)) {
            self.cut(peer, "sends a frame too slowly");
        }
        // The memory of a peer that is closing is on its way back already.
        let (closing, peers): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| peer.is_closing());
        let mut freed: usize = closing.iter().map(|peer| peer.memory.used()).sum();
        let excess = self.memory.excess();
        let lacking = self.memory.lacking(wanted).max(excess);
        for peer in &peers {
            if freed >= if making_way::does_not_read(peer) { lacking } else { excess } {
                return;
            }
            freed += peer.memory.used();
            self.cut(
                peer,
                if peer.is_behind() { "does not read its answers" } else { "uses the most memory" },
            );
        }
    }

    fn cut(&self, peer: &Peer, reason: &str) {
        peer.cut(|| {
            format!(
                "it {reason}: {} bytes are kept for it, and {} of at most {} for all connections (memory_bytes_max)",
                peer.memory.used(),
                self.memory.used(),
                self.memory.bytes_max()
            )
        });
    }
}

/// Waits until no pass over requests uses the plane, which has been replaced.
fn wait_unused(mut attached: Arc<Attached>) {
    while let Err(in_use) = Arc::try_unwrap(attached) {
        attached = in_use;
        std::thread::sleep(ANSWER_POLL);
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    while !shared.stopping.load(Relaxed) {
        match tokio::time::timeout(CARE_INTERVAL, listener.accept()).await {
            Ok(Ok((stream, remote))) => shared.admit(stream, remote),
            // Out of descriptors, or a peer that left at once: the next one may do better.
            Ok(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            Err(_nobody_came) => {}
        }
    }
}

/// Ends what lasts too long: silent peers, frames that never become whole, waits for the disk. Closes peers that cost
/// too much memory.
async fn take_care(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(CARE_INTERVAL);
    while !shared.stopping.load(Relaxed) {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.memory.is_tight() => {
                shared.cut_worst();
                // It goes through all peers, which must not happen with every step of one of them.
                tokio::time::sleep(CUT_PAUSE).await;
                continue;
            }
        }
        shared.cut_worst();
        shared.end_overdue_hold(Instant::now());
        let flush_timeout_ms =
            shared.plane().as_ref().map_or(u64::MAX, |plane| plane.broker.flush_timeout_ms);
        let crowds = shared.crowds();
        let quiet_ms = if shared.memory.is_scarce() { SCARCE_QUIET_MS } else { QUIET_MS };
        for peer in shared.peers.lock().values() {
            let slow_frame = peer.partial_for_ms().is_some_and(|ms| ms > shared.settings.frame_deadline_ms);
            let is_silent = !peer.has_spoken() && peer.now_ms() > shared.settings.first_frame_deadline_ms;
            if is_silent && !peer.is_closing() {
                peer.close_silent();
            } else if slow_frame || peer.idle_ms() > crowds.idle_timeout_ms(peer.remote.ip()) {
                peer.close();
            } else if peer.unconfirmed_for_ms().is_some_and(|ms| ms > flush_timeout_ms) {
                peer.wake();
            } else if quiet_ms.contains(&peer.idle_ms()) {
                peer.mark_quiet();
            }
        }
    }
}

fn bind_all(settings: &ServerSettings) -> Result<(StdListener, Option<StdListener>), ServerError> {
    if !settings.also_old_port {
        return Ok((bind(&settings.host, settings.port)?, None));
    }
    if settings.port != 0 {
        let listener = bind(&settings.host, settings.port)?;
        let old = settings.port.checked_sub(OLD_PORT_BELOW).and_then(|port| bind(&settings.host, port).ok());
        return Ok((listener, old));
    }
    let mut tries = 0;
    loop {
        let listener = bind(&settings.host, 0)?;
        let old = local_port(&listener)
            .checked_sub(OLD_PORT_BELOW)
            .and_then(|port| bind(&settings.host, port).ok());
        tries += 1;
        if old.is_some() || tries == PORT_PAIR_TRIES {
            return Ok((listener, old));
        }
    }
}

fn bind(host: &str, port: u16) -> Result<StdListener, ServerError> {
    let failed = |source| ServerError::Bind { address: format!("{host}:{port}"), source };
    let mut addresses = (host, port).to_socket_addrs().map_err(failed)?;
    let address = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
    let listen = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(StdListener::from(socket))
    };
    listen().map_err(failed)
}

fn local_port(listener: &StdListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}
