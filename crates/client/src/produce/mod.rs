pub(crate) mod accumulator;
pub(crate) mod batch;
pub(crate) mod byte_budget;
pub(crate) mod ids;
pub(crate) mod lanes;
pub mod outgoing;
pub(crate) mod routes;
pub(crate) mod rows;
#[cfg(test)]
mod testing;
