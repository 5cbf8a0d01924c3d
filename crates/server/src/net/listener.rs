//! A listener and its connections: binding, accepting, taking care of them, and the orderly end.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use metaq_store::Store;
use metaq_wire::{Encoding, FLAG_ONEWAY, FrameEncoder};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::ServerError;
use crate::broker::Broker;
use crate::limits::flow;
use crate::net::connection;
use crate::net::counts::Counts;
use crate::net::crossing::{Crossing, Event};
use crate::net::peer::Peer;
use crate::net::sink::Sink;
use crate::settings::{BrokerSettings, ServerSettings};

const LISTEN_BACKLOG: i32 = 1024;
/// How often the caretaker looks at deadlines.
const CARE_INTERVAL: Duration = Duration::from_millis(100);
/// Clients up to 4.4 send to this many ports below the broker's.
const OLD_PORT_BELOW: u16 = 2;
/// Free ports tried for a pair when the port was left open.
const PORT_PAIR_TRIES: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What every connection of a server shares.
pub struct Shared {
    pub settings: ServerSettings,
    pub broker: Option<Arc<Broker>>,
    pub crossing: Crossing,
    peers: Mutex<HashMap<u64, Arc<Peer>, RandomState>>,
    per_address: Mutex<HashMap<IpAddr, usize, RandomState>>,
    /// The sums of connections that have ended.
    ended: Counts,
    next_peer: AtomicU64,
    next_opaque: AtomicI32,
    stopping: AtomicBool,
}

/// A bound server; connections are accepted from `start` on.
pub struct Server {
    pub shared: Arc<Shared>,
    listeners: Mutex<Vec<StdListener>>,
    port: u16,
    old_port: Option<u16>,
    runtime: Mutex<Option<Runtime>>,
    /// What delivers messages that have waited.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    pub fn bind(
        settings: ServerSettings,
        broker: Option<(Arc<Store>, BrokerSettings)>,
    ) -> Result<Self, ServerError> {
        let (listener, old_listener) = bind_all(&settings)?;
        let port = local_port(&listener);
        let old_port = old_listener.as_ref().map(local_port);
        let broker = match broker {
            Some((store, broker)) => {
                let store_host = address("store_host", &broker.store_host, port)?;
                Some(Broker::new(store, broker, store_host).map_err(ServerError::Threads)?)
            }
            None => None,
        };
        let crossing = Crossing::new(
            settings.crossing_requests_max,
            settings.crossing_bytes_max,
            settings.crossing_age_ms_max,
        )
        .map_err(ServerError::Threads)?;
        let shared = Shared {
            settings,
            broker,
            crossing,
            peers: Mutex::default(),
            per_address: Mutex::default(),
            ended: Counts::default(),
            next_peer: AtomicU64::new(1),
            next_opaque: AtomicI32::new(1),
            stopping: AtomicBool::new(false),
        };
        Ok(Server {
            shared: Arc::new(shared),
            listeners: Mutex::new(std::iter::once(listener).chain(old_listener).collect()),
            port,
            old_port,
            runtime: Mutex::new(None),
            threads: Mutex::default(),
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
        for listener in self.listeners.lock().drain(..) {
            let listener = TcpListener::from_std(listener).map_err(ServerError::Threads)?;
            started.spawn(accept(Arc::clone(&self.shared), listener));
        }
        started.spawn(take_care(Arc::clone(&self.shared)));
        if let Some(broker) = self.shared.broker.clone() {
            started.spawn(look_after_limits(Arc::clone(&self.shared), Arc::clone(&broker)));
            let timers = Arc::clone(&broker);
            self.spawn("metaq-delay", move || broker.run_delays())?;
            self.spawn("metaq-timer", move || timers.run_timers())?;
        }
        drop(_inside);
        *runtime = Some(started);
        Ok(())
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ServerError> {
        let thread = std::thread::Builder::new().name(name.to_string()).spawn(run);
        self.threads.lock().push(thread.map_err(ServerError::Threads)?);
        Ok(())
    }

    /// Stops accepting, answers what is held, writes what is due and closes; waits at most `timeout`.
    pub fn stop(&self, timeout: Duration) {
        self.shared.stopping.store(true, Relaxed);
        self.listeners.lock().clear();
        let Some(runtime) = self.runtime.lock().take() else {
            return;
        };
        if let Some(broker) = &self.shared.broker {
            broker.delays.rounds.stop();
            broker.timers.rounds.stop();
            for held in broker.holds.take_all().into_iter().chain(broker.function_lines.take_all()) {
                broker.finish_held(held);
            }
            for held in broker.flow.paced.take_all() {
                broker.finish_paced(held);
            }
            broker.flow.release(i64::MAX);
            broker.flow.wake();
        }
        let deadline = Instant::now() + timeout;
        let peers: Vec<Arc<Peer>> = self.shared.peers.lock().values().cloned().collect();
        for peer in peers {
            peer.close();
        }
        while !self.shared.peers.lock().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        for thread in self.threads.lock().drain(..) {
            // A panic of that thread was printed by it; there is nothing to add here.
            let _ = thread.join();
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
        let mut sink = Sink::default();
        let mut frame = FrameEncoder::request(sink.output.tail(), Encoding::Json, code, opaque, flag);
        for (name, value) in fields {
            frame.field(name, value);
        }
        frame.finish(body.len()).map_err(ServerError::Frame)?;
        sink.output.append(vec![body]);
        peer.post(sink.into_parcel())?;
        Ok(opaque)
    }

    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let sum = Counts::default();
        // Under the lock: what a connection did is among the living or among the ended, never in between.
        let peers = self.shared.peers.lock();
        self.shared.ended.add_to(&sum);
        for peer in peers.values() {
            peer.counts.add_to(&sum);
        }
        let mut named = sum.named();
        named.push(("connections", peers.len() as u64));
        if let Some(broker) = &self.shared.broker {
            named.push(("transactions_open", broker.transactions.open_count() as u64));
            named.push(("limits_waiting", broker.flow.waiting() as u64));
            named.extend(broker.timers.figures());
        }
        named
    }
}

impl Shared {
    /// Lets a socket in where the limits allow it.
    fn admit(self: &Arc<Self>, stream: TcpStream, remote: SocketAddr) {
        if self.peers.lock().len() >= self.settings.connections_max {
            return;
        }
        {
            let mut per_address = self.per_address.lock();
            let count = per_address.entry(remote.ip()).or_default();
            if *count >= self.settings.connections_per_address_max {
                return;
            }
            *count += 1;
        }
        let _best_effort = stream.set_nodelay(true);
        let id = self.next_peer.fetch_add(1, Relaxed);
        let peer = Arc::new(Peer::new(id, remote, self.settings.connection_output_bytes_max));
        self.peers.lock().insert(id, Arc::clone(&peer));
        tokio::spawn(connection::run(Arc::clone(self), stream, peer));
    }

    /// A connection has ended: nothing may wait for it any longer, and Python is told.
    pub(crate) fn forget(&self, peer: &Arc<Peer>) {
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
        if let Some(broker) = &self.broker {
            broker.holds.drop_peer(peer);
            broker.function_lines.drop_peer(peer);
            broker.flow.paced.drop_peer(peer);
        }
        let _never_refused = self.crossing.offer(Event::Closed(Arc::clone(peer)));
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

/// Ends what lasts too long: held pulls, silent peers, frames that never become whole, waits for the disk.
async fn take_care(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(CARE_INTERVAL);
    while !shared.stopping.load(Relaxed) {
        ticks.tick().await;
        if let Some(broker) = &shared.broker {
            let now = Instant::now();
            let expired = broker.holds.take_expired(now);
            for held in expired.into_iter().chain(broker.function_lines.take_expired(now)) {
                broker.finish_held(held);
            }
            broker.expire_paced(Instant::now());
            // Nobody waits for the flush of a commit; without this it would wait for the next message's.
            broker.flush_ends();
        }
        let flush_timeout_ms =
            shared.broker.as_ref().map_or(u64::MAX, |broker| broker.settings.flush_timeout_ms);
        for peer in shared.peers.lock().values() {
            let slow_frame = peer.partial_for_ms().is_some_and(|ms| ms > shared.settings.frame_deadline_ms);
            if slow_frame || peer.idle_ms() > shared.settings.idle_timeout_ms {
                peer.close();
            } else if peer.parked_for_ms().is_some_and(|ms| ms > flush_timeout_ms) {
                peer.wake();
            }
        }
    }
}

/// Lets go of what waits for a limit as its time comes; asleep while nothing does.
async fn look_after_limits(shared: Arc<Shared>, broker: Arc<Broker>) {
    while !shared.stopping.load(Relaxed) {
        broker.flow.wanted().await;
        tokio::time::sleep(flow::TICK).await;
        broker.look_after_limits();
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

/// Reads `ip:port`; port 0 stands for `bound_port`.
fn address(what: &'static str, text: &str, bound_port: u16) -> Result<SocketAddr, ServerError> {
    let mut address: SocketAddr =
        text.parse().map_err(|_| ServerError::BadAddress { what, text: text.to_string() })?;
    if address.port() == 0 {
        address.set_port(bound_port);
    }
    Ok(address)
}
