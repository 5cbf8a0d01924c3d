//! Opening a store: checkpoint, the walk over the log, and the end of it.

pub(crate) mod checkpoint;
pub(crate) mod log_end;
pub(crate) mod log_walk;
pub(crate) mod open;
