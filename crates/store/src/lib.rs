//! The store of MetaQ: bytes at rest.
//!
//! Records of all topics go one behind the other into the commit log; consume queues say where the records of one queue
//! lie in it, the key index where those with a key do. Formats are those of Apache RocketMQ's store, so each opens the
//! other's directory.
//!
//! Reading order, which is a record's way through the store:
//!
//! 1. [`settings`], [`error`], [`clock`], `api`: what comes in and goes out;
//! 2. [`disk`] and `mapped`: file calls and memory maps; `unsafe` lives in `mapped` alone;
//! 3. `store`, the surface, and `commit_log` with `ahead`: append, and disk blocks before they are needed;
//! 4. `flush`: the group commit; `gate`: when writes are refused;
//! 5. `log_walk`, `dispatch`, `queue`, `queue_disk`, `queues`: from the log to the consume queues;
//! 6. `index`, `index_file`: from the log to the keys;
//! 7. `read` with [`expression`]: pulls, their filters, searches; `inspect`: what tools look at; `repair`: queue
//!    entries that do not fit;
//! 8. `checkpoint`, `keep`, `open`, `recovery`, `queue_load`: what is true after a stop of any kind;
//! 9. `retention`: what is deleted, and when;
//! 10. [`timer`]: which waiting message's time comes next.

mod api;
pub mod clock;
mod confirm;
pub mod disk;
pub mod error;
pub mod expression;
pub mod faulty_disk;
mod figures;
mod housekeeping;
mod index;
mod inspect;
mod log;
mod queue;
mod read;
mod recovery;
mod retention;
pub mod settings;
mod store;
pub mod timer;

pub use api::{Appended, AppendedBatch, Call, Filter, GetStatus, Got, QueryResult, StoreEvents};
pub use clock::Clock;
pub use disk::{Disk, SystemDisk};
pub use error::StoreError;
pub use expression::Program;
pub use figures::StoreFigures;
pub use inspect::{Measured, QueueEntry};
pub use queue::dispatch::SCHEDULE_TOPIC;
pub use settings::StoreSettings;
pub use store::Store;
pub use timer::timer_log::{Place, TIMER_TOPIC, TimerEntry, TimerLog, TimerStart};
