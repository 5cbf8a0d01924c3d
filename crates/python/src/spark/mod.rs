//! What Spark uses of the native module: rows to send, and ranges of queues to read as Arrow columns.
//!
//! The work is done in `metaq_client` (`produce/rows.rs`, `consume/column_scan.rs`); here are the classes that
//! `python/metaq/spark` and `python/metaq/client/producer/row_sender.py` see.

pub(crate) mod rows;
pub(crate) mod scan;
