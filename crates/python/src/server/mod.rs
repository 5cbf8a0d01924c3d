//! The listener, the broker plane and the store as the control plane uses them.

pub(crate) mod apache_ha;
pub(crate) mod broker_plane;
pub(crate) mod clock;
pub(crate) mod event;
pub(crate) mod expression;
pub(crate) mod figures;
pub(crate) mod function;
pub(crate) mod listener;
pub(crate) mod replication;
pub(crate) mod settings;
pub(crate) mod standing_subscription;
pub(crate) mod store;
