//! Storing messages: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), and copies of stored messages.
//!
//! A request passes four steps, each in a file of its own: `validate` refuses what may not be stored, `rewrite` makes the
//! record that will lie in the log, `store` appends it, `answer` tells the sender where it is. [`Sender`] in `handler`
//! strings them together. `properties` finds the few properties that decide how a message is treated, `keys` limits the
//! entries of the index that they cost, `copy` stores a stored message once more, `retries` decides when a failed one goes
//! to the dead letters.
//!
//! Called by `net::route` for every send, and by Python for copies. A new check belongs in `validate`, a new property of
//! stored messages in `rewrite`; both run per message, so neither allocates for an ordinary one.

pub(crate) mod answer;
pub(crate) mod copy;
pub(crate) mod handler;
pub(crate) mod keys;
pub(crate) mod properties;
mod retries;
pub(crate) mod rewrite;
pub(crate) mod store;
pub(crate) mod validate;

pub use handler::Sender;
