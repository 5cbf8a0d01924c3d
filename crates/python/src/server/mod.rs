//! The server and the store as the control plane uses them.

pub(crate) mod clock;
pub(crate) mod event;
pub(crate) mod expression;
pub(crate) mod function;
pub(crate) mod plane;
pub(crate) mod settings;
pub(crate) mod store;
