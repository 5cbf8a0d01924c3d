//! Reading messages: streams of pulls for consumers, and scans of ranges for Spark.
//!
//! [`pull`] is a stream over many queues, which [`prefetch`] holds ahead of its reader; [`scan`] reads one range to its
//! end, and [`column_scan`] lays its records out as Arrow [`columns`]. [`pull_answer`] is one pull and its answer,
//! [`records`] finds the messages in its body, and [`in_flight`] tracks those that a consumer has not finished.
//!
//! `crates/python/src/client` and `crates/python/src/spark` call this module. If an answer is not plain (the queue
//! moved, the broker refused or is gone), Python decides what to do.

pub(crate) mod column_scan;
pub(crate) mod columns;
pub(crate) mod in_flight;
pub(crate) mod prefetch;
pub(crate) mod pull;
pub(crate) mod pull_answer;
pub mod records;
pub(crate) mod scan;
#[cfg(test)]
mod testing;
