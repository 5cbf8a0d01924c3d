//! Messages that wait for a time: delay levels, timers, and recalls.

pub(crate) mod delay_levels;
pub(crate) mod delivery;
pub(crate) mod due_time;
pub(crate) mod recall;
