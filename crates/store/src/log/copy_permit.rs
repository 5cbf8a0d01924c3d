//! The permission to copy another log into this one, which can be taken back at any moment.

use parking_lot::{Mutex, MutexGuard};

use crate::error::StoreError;

/// Given to whoever copies. Once it is revoked, not one more record is appended with it, whatever is under way.
#[derive(Default)]
pub struct CopyPermit {
    is_revoked: Mutex<bool>,
}

impl CopyPermit {
    /// Keeps the permit valid until the guard is dropped. To be held only while nothing has to be waited for.
    pub fn hold(&self) -> Result<MutexGuard<'_, bool>, StoreError> {
        let is_revoked = self.is_revoked.lock();
        if *is_revoked { Err(StoreError::CopyEnded) } else { Ok(is_revoked) }
    }

    /// Takes the permission back. A thread that waits for the disk inside an append finds out when it goes on.
    pub fn revoke(&self) {
        *self.is_revoked.lock() = true;
    }
}
