//! Consume queues: the dispatch that fills them, their table, their files, and repair.

pub(crate) mod consume_queue;
pub(crate) mod dispatch;
pub(crate) mod files;
pub(crate) mod load;
pub(crate) mod repair;
pub(crate) mod table;
