//! Transactions: half messages, their ends, and the ones that are still open.
//!
//! [`Transactions`] stores half messages (`half`), checks and takes apart those that hold many (`half_batch`), and ends
//! them (`end`: END_TRANSACTION, 37). `open` is the ledger of open and recently ended transactions; it never touches the
//! store. `shares` limits what one producer group or address may have open, and `schedule` knows which of them are due.
//! `commit_recovery` finds commits again that a kill cut short. `by_hand` lists open transactions for operators, and ends
//! them.
//!
//! Called by `net::route` and `send` per request; by Python, which decides when a transaction is checked or given up; and
//! by the broker after every pass that ended some.

pub(crate) mod by_hand;
pub(crate) mod commit_recovery;
pub(crate) mod end;
pub(crate) mod half;
pub(crate) mod half_batch;
pub(crate) mod open;
mod schedule;
pub(crate) mod shares;
mod transactions;

pub use transactions::Transactions;
