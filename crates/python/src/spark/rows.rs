//! The tables that `SendBuffer.put_rows` takes: Arrow's buffers as Python holds them.

use std::time::Instant;

use metaq_client::{Accumulator, MapColumn, NumberColumn, RowLimits, RowWriter, RowsPut, VariableColumn};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::client::send_future::{Attached, SIGNAL_INTERVAL, deadline};
use crate::enter::enter_infallible;

/// `metaq.client.producer.arrow_rows.Texts`, read by attribute.
#[derive(FromPyObject)]
pub struct Texts {
    data: PyBackedBytes,
    offsets: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
}

/// `metaq.client.producer.arrow_rows.Numbers`, read by attribute.
#[derive(FromPyObject)]
pub struct Numbers {
    values: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
}

/// `metaq.client.producer.arrow_rows.Pairs`, read by attribute.
#[derive(FromPyObject)]
pub struct Pairs {
    offsets: PyBackedBytes,
    validity: Option<PyBackedBytes>,
    first_bit: usize,
    names: Texts,
    values: Texts,
}

/// `metaq.client.producer.arrow_rows.Rows`, read by attribute.
#[derive(FromPyObject)]
pub struct Rows {
    count: usize,
    topic: Option<String>,
    topics: Option<Texts>,
    bodies: Texts,
    tags: Option<Texts>,
    keys: Option<Texts>,
    properties: Option<Pairs>,
    sharding_keys: Option<Texts>,
    brokers: Option<Texts>,
    queue_ids: Option<Numbers>,
    delay_levels: Option<Numbers>,
    deliver_ms: Option<Numbers>,
}

impl Texts {
    fn column(&self) -> VariableColumn<'_> {
        VariableColumn {
            data: &self.data,
            offsets: &self.offsets,
            validity: self.validity.as_deref(),
            first_bit: self.first_bit,
        }
    }
}

impl Numbers {
    fn column(&self) -> NumberColumn<'_> {
        NumberColumn { values: &self.values, validity: self.validity.as_deref(), first_bit: self.first_bit }
    }
}

impl Pairs {
    fn column(&self) -> MapColumn<'_> {
        MapColumn {
            offsets: &self.offsets,
            validity: self.validity.as_deref(),
            first_bit: self.first_bit,
            names: self.names.column(),
            values: self.values.column(),
        }
    }
}

impl Rows {
    fn table(&self) -> metaq_client::Rows<'_> {
        metaq_client::Rows {
            count: self.count,
            topic: self.topic.as_deref(),
            topics: self.topics.as_ref().map(Texts::column),
            bodies: self.bodies.column(),
            tags: self.tags.as_ref().map(Texts::column),
            keys: self.keys.as_ref().map(Texts::column),
            properties: self.properties.as_ref().map(Pairs::column),
            sharding_keys: self.sharding_keys.as_ref().map(Texts::column),
            brokers: self.brokers.as_ref().map(Texts::column),
            queue_ids: self.queue_ids.as_ref().map(Numbers::column),
            delay_levels: self.delay_levels.as_ref().map(Numbers::column),
            deliver_ms: self.deliver_ms.as_ref().map(Numbers::column),
        }
    }
}

/// Puts all rows, waiting up to `wait_s` each time the buffer is full; `False` if the buffer is closed.
///
/// Raises ValueError with the number of a row and what is wrong with it, TimeoutError if the buffer stays full.
pub fn put(
    py: Python<'_>,
    buffer: &Accumulator<Attached>,
    limits: RowLimits,
    rows: &Rows,
    wait_s: f64,
) -> PyResult<bool> {
    let mut writer = RowWriter::new(buffer, limits, rows.table());
    loop {
        match enter_infallible(py, || writer.put()) {
            RowsPut::All => return Ok(true),
            RowsPut::Closed => return Ok(false),
            RowsPut::Invalid { row, reason } => return Err(PyValueError::new_err((row, reason))),
            RowsPut::Full => wait(py, &writer, deadline(wait_s.max(0.0)))?,
        }
    }
}

/// Waits for space without the interpreter, and lets signals end the wait.
fn wait(py: Python<'_>, writer: &RowWriter<'_, Attached>, until: Option<Instant>) -> PyResult<()> {
    while !enter_infallible(py, || writer.wait(SIGNAL_INTERVAL)) {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(PyTimeoutError::new_err("the buffer stayed full"));
        }
        py.check_signals()?;
    }
    Ok(())
}
