//! The classes that `python/metaq/client` uses of the native module.
//!
//! `send_buffer`, `send_future`, `async_send_future`, `done_batch` and `unsent` send; `pull_stream`, `received`,
//! `message` and `unsettled` receive; `network` is shared by both. The work is done in `metaq_client`: a class here turns
//! Python values into its types and back, and waits in a way that releases the interpreter and notices signals.
//!
//! Nothing here imports the package `metaq`. Its classes and functions come in once, by `register_send_types` and
//! `register_message_rules`.

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
