//! The deletion of a topic, as the log records it.
//!
//! A deletion is a record of its own: its body is the name of the topic. Dispatch deletes the topic's queues when it
//! comes to the record. So a replica, a replay after a kill and a rebuild of all queues end up with the same queues:
//! records before it belong to the deleted queues, later ones to new queues that start at 0.
//!
//! The record is marked as a rolled-back half of a transaction: no store gives it a queue entry or indexes it, Apache's
//! neither.

use std::net::{Ipv4Addr, SocketAddr};

use metaq_wire::{NewRecord, Record, body_crc, layout};

/// The topic of these records. No queue may have this name, so no client can write them.
pub(crate) const DELETION_TOPIC: &[u8] = b"METAQ_SYS_TOPIC_DELETED";

/// The record that deletes the topic.
pub(crate) fn deletion_of(topic: &[u8], now_ms: i64) -> NewRecord<'_> {
    let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    NewRecord {
        topic: DELETION_TOPIC,
        queue_id: 0,
        flag: 0,
        system_flag: layout::TRANSACTION_ROLLBACK,
        born_timestamp_ms: now_ms,
        born_host: nobody,
        store_host: nobody,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: topic,
        body_crc: body_crc(topic),
        properties: [b"", b"", b""],
    }
}

/// The topic that the record deletes; None if it is any other record.
pub(crate) fn deleted_topic<'a>(record: &Record<'a>) -> Option<&'a str> {
    let is_deletion = record.topic == DELETION_TOPIC
        && record.system_flag & layout::TRANSACTION_MASK == layout::TRANSACTION_ROLLBACK;
    std::str::from_utf8(record.body).ok().filter(|_| is_deletion)
}
