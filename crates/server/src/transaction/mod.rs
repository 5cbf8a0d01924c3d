//! Transactions: half messages, their ends, and the ones that are still open.

pub(crate) mod commit_recovery;
pub(crate) mod end;
pub(crate) mod half;
pub(crate) mod half_batch;
pub(crate) mod open;
