//! MetaQ store: bytes at rest.

mod api;
pub mod clock;
pub mod disk;
pub mod error;
pub mod settings;
mod store;

pub use api::{Appended, AppendedBatch, Filter, GetStatus, Got, QueryResult, StoreEvents};
pub use clock::Clock;
pub use disk::{Disk, SystemDisk};
pub use error::StoreError;
pub use settings::StoreSettings;
pub use store::Store;
