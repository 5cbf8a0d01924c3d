//! A producer's buffer: from a single message to an acknowledged batch.
//!
//! [`outgoing`] and [`rows`] take messages from Python and from tables of Arrow; [`accumulator`] is the buffer, over
//! [`lanes`] (batches per topic and queue) and [`byte_budget`] (its limited space); [`batch`] is what leaves;
//! [`routes`] says where to; [`ids`] makes the unique ids.
//!
//! `crates/python/src/client/send_buffer.rs` calls this room. Batches go out through [`crate::net`]. Retries, new routes
//! and pauses after failures are decided in Python: `metaq.client.producer`.

pub(crate) mod accumulator;
pub(crate) mod batch;
pub(crate) mod byte_budget;
pub(crate) mod ids;
pub(crate) mod lanes;
pub mod outgoing;
pub(crate) mod routes;
pub(crate) mod rows;
#[cfg(test)]
mod testing;
