//! Arrow columns for Spark: rows to send, and ranges of queues to read.

pub(crate) mod columns;
pub(crate) mod rows;
pub(crate) mod scan;
