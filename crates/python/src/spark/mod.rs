//! The native module's classes for Spark: rows to send, and ranges of queues to read as Arrow columns.
//!
//! The work is done in `metaq_client` (`produce/rows.rs`, `consume/column_scan.rs`). `python/metaq/spark`
//! and `python/metaq/client/producer/row_sender.py` use these classes.

pub(crate) mod rows;
pub(crate) mod scan;
