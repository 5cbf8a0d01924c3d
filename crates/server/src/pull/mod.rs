//! Reading messages: pulls, held pulls, filters, and the offsets that consumers commit.

pub(crate) mod expressions;
pub(crate) mod function;
pub(crate) mod function_lines;
pub(crate) mod handler;
pub(crate) mod hold;
pub(crate) mod offset_requests;
pub(crate) mod offsets;
pub(crate) mod reset;
