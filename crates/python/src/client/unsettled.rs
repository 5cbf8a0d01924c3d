//! What was pulled of one queue and is not done with: settled in any order, committed in theirs.

use std::collections::VecDeque;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::client::message::Message;

#[derive(Clone, Copy)]
struct Entry {
    queue_offset: i64,
    bytes: usize,
    is_settled: bool,
}

/// By queue offset, ascending; neither end is ever a settled one.
#[derive(Default)]
struct Entries {
    entries: VecDeque<Entry>,
    count: usize,
    bytes: usize,
}

impl Entries {
    fn put(&mut self, queue_offset: i64, bytes: usize) {
        let entry = Entry { queue_offset, bytes, is_settled: false };
        if self.entries.back().is_none_or(|last| last.queue_offset < queue_offset) {
            self.entries.push_back(entry);
        } else {
            // Only a broker that gives its messages in no order comes here.
            match self.entries.binary_search_by_key(&queue_offset, |entry| entry.queue_offset) {
                Ok(_) => return,
                Err(place) => self.entries.insert(place, entry),
            }
        }
        self.count += 1;
        self.bytes += bytes;
    }

    fn settle(&mut self, queue_offset: i64) {
        let Ok(place) = self.entries.binary_search_by_key(&queue_offset, |entry| entry.queue_offset) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(place).filter(|entry| !entry.is_settled) else { return };
        entry.is_settled = true;
        self.count -= 1;
        self.bytes -= entry.bytes;
        while self.entries.front().is_some_and(|entry| entry.is_settled) {
            self.entries.pop_front();
        }
        while self.entries.back().is_some_and(|entry| entry.is_settled) {
            self.entries.pop_back();
        }
    }
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Unsettled {
    entries: Mutex<Entries>,
}

#[pymethods]
impl Unsettled {
    #[new]
    fn new() -> Self {
        Unsettled { entries: Mutex::default() }
    }

    /// Those that were put: a broker may give older ones than it was asked for.
    fn put<'py>(&self, messages: Bound<'py, PyList>, from_offset: i64) -> PyResult<Bound<'py, PyList>> {
        let py = messages.py();
        let mut left_out = false;
        for message in &messages {
            let message = message.cast::<Message>().map_err(PyErr::from)?.get();
            // The size is asked before the lock is taken: to inflate a body may run Python.
            let (queue_offset, bytes) = (message.queue_offset_number(py)?, message.size(py)?);
            if queue_offset < from_offset {
                left_out = true;
                continue;
            }
            self.entries.lock().put(queue_offset, bytes);
        }
        if !left_out {
            return Ok(messages);
        }
        let kept = PyList::empty(py);
        for message in &messages {
            if message.cast::<Message>().map_err(PyErr::from)?.get().queue_offset_number(py)? >= from_offset {
                kept.append(message)?;
            }
        }
        Ok(kept)
    }

    fn settle(&self, message: &Bound<'_, Message>) -> PyResult<()> {
        let queue_offset = message.get().queue_offset_number(message.py())?;
        self.entries.lock().settle(queue_offset);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.entries.lock().count
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.entries.lock().bytes
    }

    #[getter]
    fn first(&self) -> Option<i64> {
        self.entries.lock().entries.front().map(|entry| entry.queue_offset)
    }

    #[getter]
    fn span(&self) -> i64 {
        let entries = self.entries.lock();
        match (entries.entries.front(), entries.entries.back()) {
            (Some(first), Some(last)) => last.queue_offset.saturating_sub(first.queue_offset),
            _ => 0,
        }
    }
}
