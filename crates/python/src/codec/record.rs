//! `Record`: one stored message.

use std::collections::HashMap;

use metaq_wire::{MessageIds, WireError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::Failure;

#[pyclass(frozen, get_all, module = "metaq._core")]
pub struct Record {
    topic: String,
    queue_id: i32,
    queue_offset: i64,
    physical_offset: i64,
    flag: i32,
    system_flag: i32,
    born_timestamp_ms: i64,
    born_host: String,
    store_timestamp_ms: i64,
    store_host: String,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    body: Py<PyBytes>,
    properties: HashMap<String, String>,
    message_id: String,
}

impl Record {
    fn new(py: Python<'_>, record: &metaq_wire::Record<'_>) -> Self {
        let properties = metaq_wire::properties::iterate(record.properties);
        Record {
            topic: String::from_utf8_lossy(record.topic).into_owned(),
            queue_id: record.queue_id,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            flag: record.flag,
            system_flag: record.system_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host.to_string(),
            store_timestamp_ms: record.store_timestamp_ms,
            store_host: record.store_host.to_string(),
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: record.prepared_transaction_offset,
            body: PyBytes::new(py, record.body).unbind(),
            properties: properties.map(|(name, value)| (text(name), text(value))).collect(),
            message_id: MessageIds::of(record.store_host).at(record.physical_offset).to_owned(),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[pyfunction]
#[pyo3(signature = (data))]
pub fn decode_records(py: Python<'_>, data: &[u8]) -> PyResult<Vec<Record>> {
    let mut records = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        let record = metaq_wire::Record::decode(rest).map_err(Failure::from)?;
        let after = rest.get(record.size..).filter(|_| record.size > 0);
        records.push(Record::new(py, &record));
        rest = after.ok_or(WireError::BadRecord("a record longer than its data")).map_err(Failure::from)?;
    }
    Ok(records)
}
