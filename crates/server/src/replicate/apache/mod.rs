//! Apache RocketMQ's replication protocol (DefaultHA), to move from one broker to the other while clients work.
//!
//! ```text
//!   slave  ─▶ master   | reported offset (8) |                                       again and again
//!   master ─▶ slave    | physical offset (8) | size (4) | bytes of the log (size) |  size 0 is a heartbeat
//! ```
//! Numbers are big-endian. The first report says where the stream begins. A master cuts its log into frames anywhere, but
//! no frame holds bytes of two files. There is no identity, no checksum and no epoch: whoever connects is a slave.
//!
//! `slave` follows an Apache master, `master` serves Apache slaves. Python opens the connections and reads control state
//! through ordinary requests, as Apache's slaves do.

pub(crate) mod master;
mod records;
pub(crate) mod slave;

use std::io;
use std::time::Duration;

/// The physical offset and size before the bytes of a frame.
const HEAD_BYTES: usize = 12;
/// An end that has nothing to say repeats its offset this often. Apache gives up after 20 s of silence
/// (`haHousekeepingInterval`).
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// An error of a link in words.
fn why(error: &io::Error, silence_max: Duration) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer has closed the connection".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the peer was silent for {} ms", silence_max.as_millis())
        }
        _ => error.to_string(),
    }
}
