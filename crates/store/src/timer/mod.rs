//! The timer log: when each waiting message is due.

pub mod timer_log;
