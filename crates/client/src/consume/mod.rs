pub(crate) mod column_scan;
pub(crate) mod columns;
pub(crate) mod in_flight;
pub(crate) mod prefetch;
pub(crate) mod pull;
pub(crate) mod pull_answer;
pub mod records;
pub(crate) mod scan;
#[cfg(test)]
mod testing;
