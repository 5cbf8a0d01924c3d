//! The key index: its builder and its files.

pub(crate) mod file;
pub(crate) mod key_index;
