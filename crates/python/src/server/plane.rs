//! The server as the control plane uses it: life cycle, what comes up, what goes down.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metaq_server::{Broker, Look, Recall, Resend};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{Failure, enter, enter_infallible};
use crate::server::event::to_python;
use crate::server::expression::{Pair, build};
use crate::server::function::FilterBatch;
use crate::server::settings::{BrokerSettings, GroupPolicy, ServerSettings, TopicPolicy, call_filter};
use crate::server::store::Store;

#[pyclass(frozen, module = "metaq._core")]
pub struct Server {
    inner: metaq_server::Server,
}

impl Server {
    fn broker(&self) -> PyResult<&Arc<Broker>> {
        let broker = self.inner.shared.broker.as_ref();
        broker.ok_or_else(|| PyValueError::new_err("this server has no store: it is not a broker's"))
    }
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (settings, store=None, broker=None))]
    fn new(
        settings: ServerSettings,
        store: Option<&Store>,
        broker: Option<BrokerSettings>,
    ) -> PyResult<Self> {
        let broker = match (store, broker) {
            (Some(store), Some(broker)) => {
                Some((Arc::clone(&store.inner), broker.with_store(&store.settings)))
            }
            (None, None) => None,
            _ => {
                return Err(PyValueError::new_err("a broker's server needs both its store and its settings"));
            }
        };
        let inner = metaq_server::Server::bind(settings.into(), broker).map_err(Failure::from)?;
        Ok(Server { inner })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.inner.port()
    }

    #[getter]
    fn old_port(&self) -> Option<u16> {
        self.inner.old_port()
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.inner.start())
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn stop(&self, py: Python<'_>, timeout_ms: u64) {
        enter_infallible(py, || self.inner.stop(Duration::from_millis(timeout_ms)));
    }

    fn fileno(&self) -> i32 {
        self.inner.shared.crossing.fileno()
    }

    #[pyo3(signature = (count_max=256))]
    fn drain(&self, py: Python<'_>, count_max: usize) -> PyResult<Vec<Py<PyAny>>> {
        let events = self.inner.shared.crossing.drain(count_max);
        events.into_iter().map(|event| to_python(py, event, &self.inner.shared)).collect()
    }

    #[pyo3(signature = (connection, code, *, fields=None, body=&[][..], oneway=false))]
    fn invoke(
        &self,
        py: Python<'_>,
        connection: u64,
        code: i32,
        fields: Option<HashMap<String, String>>,
        body: &[u8],
        oneway: bool,
    ) -> PyResult<i32> {
        let fields: Vec<(String, String)> = fields.unwrap_or_default().into_iter().collect();
        let body = Bytes::copy_from_slice(body);
        enter(py, || self.inner.invoke(connection, code, &fields, body, oneway))
    }

    fn put_topics(&self, topics: Vec<TopicPolicy>) -> PyResult<()> {
        self.broker()?.policy.put_topics(topics.into_iter().map(Into::into).collect());
        Ok(())
    }

    fn remove_topic(&self, name: &str) -> PyResult<()> {
        self.broker()?.policy.remove_topic(name);
        Ok(())
    }

    fn put_groups(&self, groups: Vec<GroupPolicy>) -> PyResult<()> {
        self.broker()?.policy.put_groups(groups.into_iter().map(Into::into).collect());
        Ok(())
    }

    fn remove_group(&self, name: &str) -> PyResult<()> {
        self.broker()?.policy.remove_group(name);
        Ok(())
    }

    fn put_expression(&self, text: &str, program: Vec<Pair>) -> PyResult<()> {
        let program = build(program).map_err(PyValueError::new_err)?;
        self.broker()?.expressions.put(text, metaq_store::Filter::Expression(Arc::new(program)));
        Ok(())
    }

    fn put_function(&self, text: &str, function: String, call: String) -> PyResult<()> {
        self.broker()?.expressions.put(text, call_filter((function, call)));
        Ok(())
    }

    fn functions_fileno(&self) -> PyResult<i32> {
        Ok(self.broker()?.function_lines.fileno())
    }

    fn functions_wanted(&self) -> PyResult<Vec<String>> {
        Ok(self.broker()?.function_lines.wanted())
    }

    fn take_batch(
        &self,
        py: Python<'_>,
        function: &str,
        messages_max: usize,
        bytes_max: usize,
    ) -> PyResult<Option<FilterBatch>> {
        let broker = self.broker()?;
        let batch = enter_infallible(py, || broker.take_batch(function, messages_max, bytes_max));
        Ok(batch.map(|batch| FilterBatch::new(batch, Arc::clone(broker))))
    }

    fn set_permission(&self, permission: u8) -> PyResult<()> {
        self.broker()?.policy.set_permission(permission);
        Ok(())
    }

    fn load_offsets(&self, offsets: HashMap<String, BTreeMap<i32, i64>>) -> PyResult<()> {
        self.broker()?.offsets.load(offsets);
        Ok(())
    }

    fn offsets(&self) -> PyResult<BTreeMap<String, BTreeMap<i32, i64>>> {
        Ok(self.broker()?.offsets.snapshot().into_iter().collect())
    }

    fn offsets_version(&self) -> PyResult<u64> {
        Ok(self.broker()?.offsets.version())
    }

    fn set_offset(&self, group: &str, topic: &str, queue_id: i32, committed_offset: i64) -> PyResult<()> {
        self.broker()?.offsets.assign(group, topic, queue_id, committed_offset);
        Ok(())
    }

    fn reset_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
    ) -> PyResult<()> {
        let broker = self.broker()?;
        enter_infallible(py, || broker.reset_offset(group, topic, queue_id, queue_offset));
        Ok(())
    }

    fn resets(&self) -> PyResult<BTreeMap<String, BTreeMap<i32, i64>>> {
        Ok(self.broker()?.offsets.resets().into_iter().collect())
    }

    #[pyo3(signature = (group=None, topic=None))]
    fn remove_offsets(&self, group: Option<&str>, topic: Option<&str>) -> PyResult<()> {
        self.broker()?.offsets.remove(group, topic);
        Ok(())
    }

    fn load_delay_offsets(&self, offsets: HashMap<usize, i64>) -> PyResult<()> {
        self.broker()?.delays.load(offsets);
        Ok(())
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn delay_offsets(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<BTreeMap<usize, i64>>> {
        let broker = self.broker()?;
        let offsets = enter_infallible(py, || broker.delay_offsets(Duration::from_millis(timeout_ms)));
        Ok(offsets.map(|offsets| offsets.into_iter().collect()))
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn catch_up(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<bool> {
        let broker = self.broker()?;
        Ok(enter_infallible(py, || broker.catch_up(Duration::from_millis(timeout_ms))))
    }

    #[pyo3(signature = (physical_offset, topic, queue_id, *, reconsume_times, delay_level=0, drop=Vec::new(), properties=None))]
    #[allow(clippy::too_many_arguments)]
    fn resend(
        &self,
        py: Python<'_>,
        physical_offset: i64,
        topic: String,
        queue_id: i32,
        reconsume_times: i32,
        delay_level: i64,
        drop: Vec<String>,
        properties: Option<HashMap<String, String>>,
    ) -> PyResult<i64> {
        let set = properties.unwrap_or_default().into_iter().collect();
        let resend = Resend { physical_offset, topic, queue_id, reconsume_times, delay_level, drop, set };
        let broker = self.broker()?;
        enter(py, || broker.resend(&resend))
    }

    #[pyo3(signature = (topic, unique_key, due_ms, *, producer_group, born_host))]
    fn recall(
        &self,
        py: Python<'_>,
        topic: String,
        unique_key: String,
        due_ms: i64,
        producer_group: String,
        born_host: &str,
    ) -> PyResult<bool> {
        let broker = self.broker()?;
        let born_host = born_host.parse().unwrap_or(broker.store_host);
        let recall = Recall { topic, unique_key, due_ms, producer_group, born_host };
        enter(py, || broker.recall(&recall))
    }

    fn load_transactions(&self, py: Python<'_>) -> PyResult<usize> {
        let broker = self.broker()?;
        Ok(enter_infallible(py, || broker.load_transactions()))
    }

    #[pyo3(signature = (timeout_ms=5000))]
    fn transaction_offsets(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<(i64, i64)>> {
        let broker = self.broker()?;
        Ok(enter_infallible(py, || broker.transaction_offsets(Duration::from_millis(timeout_ms))))
    }

    #[pyo3(signature = (*, timeout_ms, renew_ms, stored_before_ms, count_max))]
    fn due_transactions<'py>(
        &self,
        py: Python<'py>,
        timeout_ms: i64,
        renew_ms: i64,
        stored_before_ms: i64,
        count_max: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let broker = self.broker()?;
        let now_ms = broker.store.clock().now_ms();
        let look = Look { now_ms, timeout_ms, renew_ms, stored_before_ms, count_max };
        let records = enter_infallible(py, || broker.due_transactions(&look));
        Ok(records.iter().map(|record| PyBytes::new(py, record)).collect())
    }

    fn renew_transactions<'py>(
        &self,
        py: Python<'py>,
        queue_offsets: Vec<i64>,
        checked: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let broker = self.broker()?;
        let copies = enter(py, || broker.renew_transactions(&queue_offsets, checked))?;
        Ok(copies.iter().map(|copy| PyBytes::new(py, copy)).collect())
    }

    fn park_transactions(&self, py: Python<'_>, queue_offsets: Vec<i64>, topic: &str) -> PyResult<usize> {
        let broker = self.broker()?;
        enter(py, || broker.park_transactions(&queue_offsets, topic))
    }

    fn resume_transaction(&self, py: Python<'_>, physical_offset: i64, topic: &str) -> PyResult<bool> {
        let broker = self.broker()?;
        enter(py, || broker.resume_transaction(physical_offset, topic))
    }

    fn counters(&self) -> HashMap<&'static str, u64> {
        self.inner.counters().into_iter().collect()
    }
}
