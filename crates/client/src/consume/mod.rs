pub(crate) mod prefetch;
pub(crate) mod pull;
pub(crate) mod pull_answer;
pub(crate) mod scan;
