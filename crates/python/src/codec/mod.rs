//! Frames, stored records and compressed bodies for Python code: the control plane's connections, tools and tests.
//!
//! `frame` and `record` wrap `metaq_wire`; `compression` wraps `metaq_client`.

pub(crate) mod compression;
pub(crate) mod frame;
pub(crate) mod record;
