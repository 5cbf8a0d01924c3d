//! The commit log: mapped files, preallocation, flush, and the gate that refuses writes.

pub(crate) mod commit_log;
pub(crate) mod flush;
pub(crate) mod gate;
pub(crate) mod mapped;
pub(crate) mod preallocation;
pub(crate) mod progress;
