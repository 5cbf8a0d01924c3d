//! The bytes between two peers: one [`Transport`] for the sockets of brokers, name servers and clients.
//!
//! [`transport`] reads and writes a socket without knowing what the bytes mean. `metaq-wire` decodes
//! frames, and the caller handles them. [`sniff`] looks at the first bytes of a connection and
//! says which protocol the peer speaks.
//!
//! A transport is plain TCP today. TLS belongs inside [`Transport`]: its two directions share one session, so the
//! transport has one method that waits for both, and callers change nothing.
//!
//! Callers: `crates/server/src/net/connection.rs` and `crates/client/src/net/connection.rs`.
#![forbid(unsafe_code)]

mod sniff;
mod transport;

pub use sniff::{Protocol, not_a_frame, sniff};
pub use transport::{GATHER_MAX, Input, Output, Progress, Transport};
