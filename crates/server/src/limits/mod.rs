//! Rate limits of topics and groups, and the requests that wait for them.

pub(crate) mod flow;
pub(crate) mod paced;
pub(crate) mod rate;
