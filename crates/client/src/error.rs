//! What can go wrong between a client and a broker.

use std::time::Duration;

use metaq_wire::WireError;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("{address}: no connection within {} s", .timeout.as_secs_f32())]
    ConnectTimeout { address: String, timeout: Duration },
    #[error("{address}: {reason}")]
    Connect { address: String, reason: String },
    /// The connection ended while the request was under way: it may have been carried out.
    #[error("{address}: {reason}")]
    Ended { address: String, reason: String },
    /// Nothing came in time: it may have been carried out.
    #[error("{address}: no answer to request {code} within {} s", .timeout.as_secs_f32())]
    Timeout { address: String, code: i32, timeout: Duration },
    #[error("the request cannot be sent: {0}")]
    Request(WireError),
    #[error("this client is closed")]
    Closed,
    #[error("cannot start the client's network thread: {0}")]
    Thread(String),
}
