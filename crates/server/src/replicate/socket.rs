//! The connection of a replication link before the stream begins: Python exchanges a few short messages on it to find
//! out who the peer is and where to begin.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A connected socket with a deadline for everything that happens before the stream.
pub struct LinkSocket {
    /// Never locked during a call to the system, so that `close` ends a call that waits.
    stream: Mutex<Option<Arc<TcpStream>>>,
    deadline: Instant,
    pub remote: String,
}

impl LinkSocket {
    fn new(stream: TcpStream, remote: String, patience: Duration) -> Self {
        Self { stream: Mutex::new(Some(Arc::new(stream))), deadline: Instant::now() + patience, remote }
    }

    /// Connects to a master.
    pub fn connect(address: &str, patience: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        for candidate in address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            outcome = TcpStream::connect_timeout(&candidate, left);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|stream| Self::new(stream, address.to_owned(), patience))
    }

    pub fn send(&self, data: &[u8]) -> io::Result<()> {
        self.within_deadline(|stream| stream.write_all(data))
    }

    /// Reads exactly this many bytes.
    pub fn receive(&self, size: usize) -> io::Result<Vec<u8>> {
        self.within_deadline(|stream| {
            let mut data = vec![0; size];
            stream.read_exact(&mut data)?;
            Ok(data)
        })
    }

    /// Gives the socket to a hub or a follower; None if it was given away or closed before.
    pub fn take(&self) -> Option<TcpStream> {
        let stream = self.stream.lock().take()?;
        stream.try_clone().ok()
    }

    pub fn close(&self) {
        if let Some(stream) = self.stream.lock().take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn within_deadline<T>(&self, work: impl FnOnce(&mut &TcpStream) -> io::Result<T>) -> io::Result<T> {
        let held = self.stream.lock().clone();
        let stream = held.as_deref().ok_or(io::ErrorKind::NotConnected)?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        work(&mut &*stream).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(io::ErrorKind::ConnectionReset, "the peer closed the connection")
            }
            _ => error,
        })
    }
}

/// The port on which replicas reach a master.
pub struct LinkListener {
    listener: TcpListener,
    patience: Duration,
}

impl LinkListener {
    /// Connections get `patience` for everything that happens before the stream.
    pub fn bind(address: &str, patience: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, patience })
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }

    /// Becomes readable when somebody has connected.
    pub fn fileno(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// The next connection; None if there is none now.
    pub fn accept(&self) -> io::Result<Option<LinkSocket>> {
        match self.listener.accept() {
            Ok((stream, remote)) => {
                stream.set_nonblocking(false)?;
                Ok(Some(LinkSocket::new(stream, remote.to_string(), self.patience)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
