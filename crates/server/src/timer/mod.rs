//! Messages that wait for a time: delay levels, timers, and recalls.
//!
//! `delay_levels` has one queue per level, in the order of delivery. `delivery` serves any other moment through the store's
//! timer log. `due_time` reads the moment that a sender asks for and refuses what the broker does not allow; `recall`
//! cancels a delivery, `signature` proves that a handle is ours. `listing` counts and lists the messages that wait. Both
//! deliveries run on a thread of the plane and store the message again in its own queue.
//!
//! Called by `send` and `transaction`, which decide that a message waits, and by Python for recalls, lists and progress.

pub(crate) mod delay_levels;
pub(crate) mod delivery;
pub(crate) mod due_time;
pub(crate) mod listing;
pub(crate) mod recall;
pub(crate) mod signature;
