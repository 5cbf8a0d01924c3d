//! Why a request of a client has no answer.

use std::time::Duration;

use metaq_wire::WireError;

/// Each variant says whether the broker may have carried the request out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("{address}: no connection within {} s", .timeout.as_secs_f32())]
    ConnectTimeout { address: String, timeout: Duration },
    #[error("{address}: {reason}")]
    Connect { address: String, reason: String },
    /// The connection ended after the request was queued: the broker may have carried it out.
    #[error("{address}: {reason}")]
    Ended { address: String, reason: String },
    /// No answer came in time: the broker may have carried it out.
    #[error("{address}: no answer to request {code} within {} s", .timeout.as_secs_f32())]
    Timeout { address: String, code: i32, timeout: Duration },
    #[error("the request cannot be sent: {0}")]
    Request(WireError),
    #[error("this client is closed")]
    Closed,
    #[error("cannot start the client's network thread: {0}")]
    Thread(String),
}
