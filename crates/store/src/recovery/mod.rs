//! Opening a store after any kind of stop, and closing it.
//!
//! `open` takes the lock, finds the end of the log, brings the tail to the disk, rebuilds the queues and, at the end,
//! closes in order. `replay_start` decides from where the log is replayed, `log_end` where it ends. `log_walk` reads the log record
//! by record and finds the way again after damage; dispatch, the index and repair use it too. `checkpoint` is the file
//! that says how far everything was safe, `log_start` the one that says where the log begins.
//!
//! `truncation` cuts the log of a store that is not open, and `rewrite` repairs it.
//!
//! `store` calls `open`; `housekeeping` saves the checkpoint. Nothing here may trust bytes from disk before it checked
//! them.

pub(crate) mod checkpoint;
pub(crate) mod log_end;
pub(crate) mod log_start;
pub(crate) mod log_walk;
pub(crate) mod open;
pub(crate) mod replay_start;
pub(crate) mod rewrite;
pub(crate) mod truncation;
