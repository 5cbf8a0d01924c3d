//! The client's native objects: the send buffer, its futures, the pull stream, messages.

pub(crate) mod async_send_future;
pub(crate) mod done_batch;
pub(crate) mod message;
pub(crate) mod network;
pub(crate) mod pull_stream;
pub(crate) mod received;
pub(crate) mod send_buffer;
pub(crate) mod send_future;
pub(crate) mod unsent;
pub(crate) mod unsettled;
