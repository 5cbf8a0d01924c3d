//! `metaq._core`: the one door between the planes. Values are converted here and errors mapped.
//!
//! Python owns configuration, membership and rare decisions. Rust applies rules per message, from data that Python gave
//! it. Every rule has exactly one owner.
//!
//! Four readers use the module: the servers, the client, Spark, and the codec that they share.

use pyo3::prelude::*;

mod allocator;
mod client;
mod codec;
mod enter;
mod server;
mod spark;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("HOT_CODES", pyo3::types::PyTuple::new(py, metaq_server::HOT_CODES)?)?;
    module.add("WIRE_VERSION", metaq_wire::WIRE_VERSION)?;
    module.add("CoreError", py.get_type::<enter::CoreError>())?;
    module.add("StoreFailure", py.get_type::<enter::StoreFailure>())?;
    module.add("StoreClosed", py.get_type::<enter::StoreClosed>())?;
    module.add("FrameError", py.get_type::<enter::FrameError>())?;
    module.add("ConnectionGone", py.get_type::<enter::ConnectionGone>())?;
    module.add("CompressionFailure", py.get_type::<enter::CompressionFailure>())?;
    module.add_function(wrap_pyfunction!(allocator::give_back_freed_memory, module)?)?;
    // server
    module.add_class::<server::apache_ha::ApacheFollowerFigures>()?;
    module.add_class::<server::apache_ha::ApacheHaFollower>()?;
    module.add_class::<server::apache_ha::ApacheHaMaster>()?;
    module.add_class::<server::apache_ha::ApacheSlaveFigures>()?;
    module.add_class::<server::broker_plane::BrokerPlane>()?;
    module.add_class::<server::clock::Clock>()?;
    module.add_class::<server::event::Answer>()?;
    module.add_class::<server::event::Closed>()?;
    module.add_class::<server::event::Request>()?;
    module.add_class::<server::expression::Expression>()?;
    module.add_class::<server::figures::ListenerFigures>()?;
    module.add_class::<server::figures::SlowRequest>()?;
    module.add_class::<server::figures::PlaneFigures>()?;
    module.add_class::<server::figures::StoreFigures>()?;
    module.add_class::<server::function::FilterBatch>()?;
    module.add_class::<server::listener::Listener>()?;
    module.add_class::<server::replication::FollowerFigures>()?;
    module.add_class::<server::replication::LinkFigures>()?;
    module.add_class::<server::replication::LinkListener>()?;
    module.add_class::<server::replication::LinkSocket>()?;
    module.add_class::<server::replication::ReplicationFollower>()?;
    module.add_class::<server::replication::ReplicationHub>()?;
    module.add_class::<server::standing_subscription::StandingSubscription>()?;
    module.add_class::<server::store::Store>()?;
    module.add_class::<server::store::StoreOpened>()?;
    module.add_function(wrap_pyfunction!(server::replication::rewrite_log, module)?)?;
    module.add_function(wrap_pyfunction!(server::replication::truncate_store, module)?)?;
    // client
    module.add_class::<client::async_send_future::AsyncSendFuture>()?;
    module.add_class::<client::done_batch::DoneBatch>()?;
    module.add_class::<client::message::Message>()?;
    module.add_class::<client::network::Network>()?;
    module.add_class::<client::network::UniqueIds>()?;
    module.add_class::<client::pull_stream::Event>()?;
    module.add_class::<client::pull_stream::PullStream>()?;
    module.add_class::<client::send_buffer::SendBuffer>()?;
    module.add_class::<client::send_future::SendFuture>()?;
    module.add_class::<client::unsent::UnsentBatch>()?;
    module.add_class::<client::unsettled::Unsettled>()?;
    // spark
    module.add_class::<spark::scan::Scan>()?;
    module.add_class::<spark::scan::ScanBatch>()?;
    module.add_class::<spark::scan::ScanStop>()?;
    // codec
    module.add_class::<codec::frame::Frame>()?;
    module.add_class::<codec::frame::FrameDecoder>()?;
    module.add_class::<codec::record::Record>()?;
    module.add_function(wrap_pyfunction!(codec::compression::compress, module)?)?;
    module.add_function(wrap_pyfunction!(codec::compression::decompress, module)?)?;
    module.add_function(wrap_pyfunction!(codec::frame::encode_frame, module)?)?;
    module.add_function(wrap_pyfunction!(codec::frame::tag_code, module)?)?;
    module.add_function(wrap_pyfunction!(codec::frame::tag_codes, module)?)?;
    module.add_function(wrap_pyfunction!(client::received::decode_messages, module)?)?;
    module.add_function(wrap_pyfunction!(codec::record::decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(client::received::register_message_rules, module)?)?;
    module.add_function(wrap_pyfunction!(client::send_future::register_send_types, module)?)?;
    Ok(())
}
