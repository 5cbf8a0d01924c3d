//! A buffer without a broker, whose messages a test takes out again.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metaq_wire::batch_records;
use metaq_wire::properties::iterate;

use crate::net::network::{Network, NetworkSettings};
use crate::produce::accumulator::{Accumulator, SendSettings};
use crate::produce::batch::{BrokerQueue, Form, Outcome};
use crate::produce::ids::UniqueIds;
use crate::produce::lanes::LaneLimits;
use crate::produce::routes::Route;

pub(crate) const TOPIC: &str = "t";

/// A message as a broker would get it, without its unique id, which was checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SentMessage {
    pub body: Vec<u8>,
    pub properties: BTreeMap<String, String>,
    pub queue: Option<(String, i32)>,
    pub is_alone: bool,
}

pub(crate) struct TestBuffer {
    pub buffer: Arc<Accumulator<()>>,
    _network: Arc<Network>,
}

impl TestBuffer {
    /// Topic `t` has the queues 0 and 1 of broker `a`, and queue 0 of broker `b`.
    pub(crate) fn start(buffer_bytes_max: usize, half_properties: Option<&str>) -> TestBuffer {
        let network = Network::start(NetworkSettings::TEST).unwrap();
        let settings = SendSettings {
            group: "g".to_owned(),
            attempt_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
            // Nothing leaves before it is flushed.
            limits: LaneLimits {
                linger: Duration::from_secs(3600),
                batch_bytes_max: 1000,
                buffer_bytes_max,
                in_flight_max: 4,
            },
            half_properties: half_properties.map(Arc::from),
        };
        let ids = Arc::new(UniqueIds::new(&[1, 2], 0, 0));
        let buffer = Accumulator::start(Arc::clone(&network), ids, settings).unwrap();
        let queues = [("a", 0), ("a", 1), ("b", 0)];
        let addressed = queues.map(|(broker, id)| (broker.to_owned(), "127.0.0.1:1".to_owned(), id));
        buffer.routes.put(TOPIC, Route::new(addressed, false));
        TestBuffer { buffer, _network: network }
    }

    /// Closes the buffer and returns its messages in the order of their batches.
    pub(crate) fn into_messages(self) -> Vec<SentMessage> {
        let mut messages = Vec::new();
        for unsent in self.buffer.close() {
            let batch = &unsent.batch;
            let queue =
                batch.queue.as_ref().map(|BrokerQueue { broker, queue_id }| (broker.to_string(), *queue_id));
            match &batch.contents().unwrap().form {
                Form::Alone { properties, .. } if !properties.contains("METAQ_HALF_BATCH") => {
                    let properties = own_properties(properties.as_bytes());
                    messages.push(SentMessage {
                        body: batch.body().to_vec(),
                        properties,
                        queue,
                        is_alone: true,
                    });
                }
                _ => messages.extend(batch_records(&batch.body()).map(|record| {
                    let record = record.unwrap();
                    let (body, properties) = (record.body.to_vec(), own_properties(record.properties));
                    SentMessage { body, properties, queue: queue.clone(), is_alone: false }
                })),
            }
            self.buffer.finish(batch, Outcome::Failed);
        }
        messages
    }
}

fn own_properties(properties: &[u8]) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().to_owned();
    let mut all: BTreeMap<String, String> =
        iterate(properties).map(|(name, value)| (text(name), text(value))).collect();
    assert!(all.remove("UNIQ_KEY").unwrap().starts_with("0102"));
    all
}
