//! The store from outside. One binary holds all of these tests, because every further one would be linked anew.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod append_read;
mod checksums;
mod concurrency;
mod cut_files;
mod damage;
mod entry_repair;
mod faults;
mod filters;
mod index_damage;
mod inspect;
mod model;
mod opened;
mod raw_append;
mod recovery;
mod replicated_open;
mod replication;
mod retention;
mod scrub;
mod topic_deletion;
mod truncation;
mod visibility;
