//! The allocator of the data plane. Python keeps the one of the system.
//!
//! Clients can make a listener allocate and free hundreds of megabytes. The system's allocator keeps what was freed until
//! somebody trims it, and a trim stops every thread that allocates. This one gives pages back by itself, from a thread of
//! its own, once they have been unused for a while.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use tikv_jemalloc_ctl::{Access, AsName, Error, background_thread};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Gives pages that the data plane has freed back to the system once they have been unused for this long. Returns False if
/// the platform has no thread for that: then they go back when the thread that freed them frees more.
#[pyfunction]
pub fn give_back_freed_memory(after_ms: u32) -> PyResult<bool> {
    let after_ms = isize::try_from(after_ms).unwrap_or(isize::MAX);
    for_all_arenas(after_ms).map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(background_thread::write(true).is_ok())
}

/// Sets the time for the arenas that there are, and for those to come.
fn for_all_arenas(after_ms: isize) -> Result<(), Error> {
    b"arenas.dirty_decay_ms\0".name().write(after_ms)?;
    let count: u32 = b"arenas.narenas\0".name().read()?;
    for arena in 0..count {
        let name = format!("arena.{arena}.dirty_decay_ms\0");
        // An arena that no thread has used yet refuses: it gets the time when it begins.
        let _unused = name.name().write(after_ms);
    }
    Ok(())
}
