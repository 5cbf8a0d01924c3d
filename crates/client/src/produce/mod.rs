pub(crate) mod accumulator;
pub(crate) mod batch;
pub(crate) mod byte_budget;
pub(crate) mod ids;
pub(crate) mod lanes;
pub(crate) mod routes;
