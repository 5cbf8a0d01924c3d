//! The store as its callers see it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metaq_wire::NewRecord;

use crate::api::{Appended, AppendedBatch, Filter, GetStatus, Got, QueryResult, StoreEvents};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::settings::StoreSettings;

/// An open store directory.
pub struct Store {
    _settings: StoreSettings,
}

impl Store {
    pub fn open(settings: StoreSettings, _clock: Clock, _disk: Arc<dyn Disk>) -> Result<Arc<Store>, StoreError> {
        settings.check()?;
        Ok(Arc::new(Self { _settings: settings }))
    }
    pub fn set_events(&self, _events: Arc<dyn StoreEvents>) {}
    pub fn append(&self, _record: &NewRecord<'_>) -> Result<Appended, StoreError> {
        Err(StoreError::Closed)
    }
    pub fn append_batch(&self, _records: &[NewRecord<'_>]) -> Result<AppendedBatch, StoreError> {
        Err(StoreError::Closed)
    }
    pub fn dispatch(&self) {}
    pub fn flushed_offset(&self) -> i64 {
        0
    }
    pub fn request_flush(&self, _end_offset: i64) {}
    pub fn wait_flushed(&self, _end_offset: i64, _timeout: Duration) -> bool {
        false
    }
    pub fn get(
        &self,
        _topic: &str,
        _queue_id: i32,
        _queue_offset: i64,
        _count_max: usize,
        _bytes_max: usize,
        _filter: &Filter,
    ) -> Got {
        Got::nothing(GetStatus::NoQueue, 0, 0, 0)
    }
    pub fn min_offset(&self, _topic: &str, _queue_id: i32) -> i64 {
        0
    }
    pub fn max_offset(&self, _topic: &str, _queue_id: i32) -> i64 {
        0
    }
    pub fn queue_ids(&self, _topic: &str) -> Vec<i32> {
        Vec::new()
    }
    pub fn search_offset(&self, _topic: &str, _queue_id: i32, _timestamp_ms: i64, _upper: bool) -> i64 {
        0
    }
    pub fn store_time(&self, _topic: &str, _queue_id: i32, _queue_offset: i64) -> Option<i64> {
        None
    }
    pub fn in_memory(&self, _topic: &str, _queue_id: i32, _queue_offset: i64) -> bool {
        false
    }
    pub fn record_at(&self, _physical_offset: i64) -> Option<Bytes> {
        None
    }
    pub fn query(&self, _topic: &str, _key: &str, _count_max: usize, _begin_ms: i64, _end_ms: i64) -> QueryResult {
        QueryResult::default()
    }
    pub fn delete_topic(&self, _topic: &str) -> Result<(), StoreError> {
        Ok(())
    }
    pub fn protect(&self, _consumed: HashMap<(String, i32), i64>) {}
    pub fn clean(&self, _force: bool) -> Result<usize, StoreError> {
        Ok(0)
    }
    pub fn figures(&self) -> Vec<(&'static str, i64)> {
        Vec::new()
    }
    pub fn take_reports(&self) -> Vec<String> {
        Vec::new()
    }
    pub fn writable(&self) -> Result<(), StoreError> {
        Ok(())
    }
    pub fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
