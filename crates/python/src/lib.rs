//! `metaq._core`: the one door between the planes. Nothing is decided here; values are turned and errors mapped.

use pyo3::prelude::*;

mod async_send_future;
mod clock;
mod columns;
mod compression;
mod done_batch;
mod enter;
mod event;
mod expression;
mod frame;
mod function;
mod message;
mod network;
mod pull_stream;
mod received;
mod record;
mod rows;
mod scan;
mod send_buffer;
mod send_future;
mod server;
mod settings;
mod store;
mod unsent;
mod unsettled;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("HOT_CODES", pyo3::types::PyTuple::new(py, metaq_server::HOT_CODES)?)?;
    module.add("WIRE_VERSION", metaq_wire::WIRE_VERSION)?;
    module.add("CoreError", py.get_type::<enter::CoreError>())?;
    module.add("StoreFailure", py.get_type::<enter::StoreFailure>())?;
    module.add("FrameError", py.get_type::<enter::FrameError>())?;
    module.add("ConnectionGone", py.get_type::<enter::ConnectionGone>())?;
    module.add("CompressionFailure", py.get_type::<enter::CompressionFailure>())?;
    module.add_class::<async_send_future::AsyncSendFuture>()?;
    module.add_class::<clock::Clock>()?;
    module.add_class::<done_batch::DoneBatch>()?;
    module.add_class::<expression::Expression>()?;
    module.add_class::<function::FilterBatch>()?;
    module.add_class::<frame::Frame>()?;
    module.add_class::<frame::FrameDecoder>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<pull_stream::Event>()?;
    module.add_class::<pull_stream::PullStream>()?;
    module.add_class::<record::Record>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<scan::ScanBatch>()?;
    module.add_class::<scan::ScanStop>()?;
    module.add_class::<network::Network>()?;
    module.add_class::<network::UniqueIds>()?;
    module.add_class::<send_buffer::SendBuffer>()?;
    module.add_class::<send_future::SendFuture>()?;
    module.add_class::<unsent::UnsentBatch>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<unsettled::Unsettled>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<event::Request>()?;
    module.add_class::<event::Answer>()?;
    module.add_class::<event::Closed>()?;
    module.add_function(wrap_pyfunction!(compression::compress, module)?)?;
    module.add_function(wrap_pyfunction!(compression::decompress, module)?)?;
    module.add_function(wrap_pyfunction!(frame::encode_frame, module)?)?;
    module.add_function(wrap_pyfunction!(frame::tag_code, module)?)?;
    module.add_function(wrap_pyfunction!(received::decode_messages, module)?)?;
    module.add_function(wrap_pyfunction!(record::decode_records, module)?)?;
    Ok(())
}
