//! The timer log: when each waiting message is due.
//!
//! Waiting messages lie in the commit log, in the queue of [`timer_log::TIMER_TOPIC`]. The timer log sorts them by
//! time: one file per minute (`bucket`), a `checkpoint`, and a `mark` that tells after a kill what was delivered. It
//! can be rebuilt from its queue at any time.
//!
//! The delivery thread in `crates/server` owns the only [`timer_log::TimerLog`] and calls it; nothing else writes the
//! files. Other threads count and list what waits through its `outline`, which only reads them.

pub mod timer_log;
