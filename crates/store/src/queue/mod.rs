//! Consume queues: for each topic and queue id, a list of where its records lie in the commit log.
//!
//! `dispatch` walks the log and adds one entry per record, but never past what may be shown. `consume_queue` keeps the
//! newest entries in memory and older ones in files, which `files` opens, a bounded number at a time. `table` finds
//! queues by topic and id and `load` reads them from disk. `repair` corrects a damaged entry when a read meets it, and
//! `entry_check` when the scrub does.
//! `deletion` is the record that deletes a topic's queues.
//!
//! `confirm` and `recovery` call dispatch, `read` and `inspect` read entries, `housekeeping` writes them out.
//! Everything here can be rebuilt from the commit log, so the log is always written first.

pub(crate) mod consume_queue;
pub(crate) mod deletion;
pub(crate) mod dispatch;
pub(crate) mod entry_check;
pub(crate) mod files;
pub(crate) mod load;
pub(crate) mod repair;
pub(crate) mod table;
