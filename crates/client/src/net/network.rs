//! The network thread of a client, and its connections by address.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::fast::RandomState;
use metaq_transport::Transport;
use parking_lot::Mutex;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::ClientError;
use crate::net::connection::{Connection, READ_BYTES};
use crate::net::request::{Reply, Request};

/// How connections are opened, and when a peer is given up.
#[derive(Debug, Clone, Copy)]
pub struct NetworkSettings {
    pub connect_timeout: Duration,
    /// A connection ends when the peer's system acknowledges nothing for this long. Without it, the system would keep
    /// trying to reach a host that vanished for a quarter of an hour.
    pub silence_ms_max: u32,
    /// A connection ends when its peer sends a longer frame.
    pub frame_bytes_max: usize,
}

#[cfg(test)]
impl NetworkSettings {
    pub(crate) const TEST: NetworkSettings = NetworkSettings {
        connect_timeout: Duration::from_secs(3),
        silence_ms_max: 20_000,
        frame_bytes_max: metaq_wire::FRAME_BYTES_MAX,
    };
}

/// The network thread of a client. [`Network::spawn`] gives it tasks, which run one at a time.
pub struct Network {
    settings: NetworkSettings,
    handle: Handle,
    slots: Mutex<HashMap<Arc<str>, Arc<Slot>, RandomState>>,
    stop: Arc<Notify>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A forked process has this object but not its thread.
    pub(crate) process: u32,
}

/// The connection to one address, once there is one. Requests that come while it is being opened wait for it.
#[derive(Default)]
struct Slot {
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl Network {
    /// Starts the thread. Connections are opened when they are needed.
    pub fn start(settings: NetworkSettings) -> Result<Arc<Self>, ClientError> {
        let failed = |error: std::io::Error| ClientError::Thread(error.to_string());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("metaq network".to_owned())
            .spawn(move || {
                runtime.block_on(stopped.notified());
                // Do not wait for a DNS lookup that is still running.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Arc::new(Network {
            settings,
            handle,
            slots: Mutex::default(),
            stop,
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        }))
    }

    /// Runs a task on the network thread. Closing the network drops tasks that are still running.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Sends a request and waits for the reply, whatever its code. Connects first if needed; `patience` covers both. It
    /// is the caller's choice: a broker may hold a pull for half a minute, while a send is lost after seconds.
    pub async fn call(
        &self,
        address: &str,
        request: Request,
        patience: Duration,
    ) -> Result<Reply, ClientError> {
        let code = request.code;
        let deadline = Instant::now() + patience;
        let late = || ClientError::Timeout { address: address.to_owned(), code, timeout: patience };
        let connection = timeout_at(deadline, self.connection(address)).await.map_err(|_| late())??;
        let pending = connection.send(request)?;
        timeout_at(deadline, pending.reply()).await.map_err(|_| late())?
    }

    /// Sends a request that gets no reply.
    pub async fn send_oneway(&self, address: &str, request: Request) -> Result<(), ClientError> {
        self.connection(address).await?.send_oneway(request)
    }

    /// False in a forked process: it has no network thread, and locks that were held during the fork stay held.
    pub(crate) fn is_own_process(&self) -> bool {
        std::process::id() == self.process
    }

    /// Ends the thread and all connections. You may call it twice, and in a forked process.
    pub fn close(&self) {
        if !self.is_own_process() {
            return;
        }
        self.stop.notify_one();
        let thread = self.thread.lock().take();
        // The last reference may be dropped by a task of this thread, which cannot join itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ended = thread.join();
        }
        for slot in std::mem::take(&mut *self.slots.lock()).into_values() {
            if let Ok(mut connection) = slot.connection.try_lock()
                && let Some(connection) = connection.take()
            {
                connection.end("closed by this side");
            }
        }
    }

    async fn connection(&self, address: &str) -> Result<Arc<Connection>, ClientError> {
        let slot = self.slot(address);
        let mut current = slot.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        let transport = self.dial(address).await?;
        let connection = Connection::new(Arc::from(address));
        self.spawn(Arc::clone(&connection).run(transport, self.settings.frame_bytes_max));
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn slot(&self, address: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(address) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(Slot::default());
        slots.insert(Arc::from(address), Arc::clone(&slot));
        slot
    }

    async fn dial(&self, address: &str) -> Result<Transport, ClientError> {
        let failed = |error: std::io::Error| ClientError::Connect {
            address: address.to_owned(),
            reason: error.to_string(),
        };
        let patience = self.settings.connect_timeout;
        let stream = timeout(patience, TcpStream::connect(address))
            .await
            .map_err(|_| ClientError::ConnectTimeout { address: address.to_owned(), timeout: patience })?
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        set_tcp_user_timeout(&stream, self.settings.silence_ms_max).map_err(|error| failed(error.into()))?;
        Ok(Transport::plain(stream, READ_BYTES))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.close();
    }
}
