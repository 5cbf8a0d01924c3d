//! Frames, records and compressed bodies for Python's own use.

pub(crate) mod compression;
pub(crate) mod frame;
pub(crate) mod record;
