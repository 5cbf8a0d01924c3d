//! Enters the data plane: releases the interpreter, and turns every error into its Python exception.

use metaq_client::{ClientError, CompressionError};
use metaq_server::ServerError;
use metaq_store::StoreError;
use metaq_wire::WireError;
use pyo3::exceptions::{PyLookupError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(metaq._core, CoreError, pyo3::exceptions::PyException);
pyo3::create_exception!(metaq._core, StoreFailure, CoreError);
pyo3::create_exception!(metaq._core, StoreClosed, StoreFailure);
pyo3::create_exception!(metaq._core, FrameError, CoreError);
pyo3::create_exception!(metaq._core, ConnectionGone, CoreError);
pyo3::create_exception!(metaq._core, CompressionFailure, CoreError);

/// Every error of the crates below.
pub enum Failure {
    Store(StoreError),
    Server(ServerError),
    Wire(WireError),
    Client(ClientError),
    Compression(CompressionError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Failure::Server(error)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Wire(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Failure::Client(error)
    }
}

impl From<CompressionError> for Failure {
    fn from(error: CompressionError) -> Self {
        Failure::Compression(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(StoreError::BadSettings(what)) => PyValueError::new_err(what),
            Failure::Store(error @ StoreError::Closed) => StoreClosed::new_err(error.to_string()),
            Failure::Store(error) => StoreFailure::new_err(error.to_string()),
            Failure::Wire(error) => FrameError::new_err(error.to_string()),
            Failure::Client(error) => match &error {
                ClientError::Thread(_) => PyOSError::new_err(error.to_string()),
                ClientError::Request(_) => FrameError::new_err(error.to_string()),
                ClientError::ConnectTimeout { .. }
                | ClientError::Connect { .. }
                | ClientError::Ended { .. }
                | ClientError::Timeout { .. }
                | ClientError::Closed => ConnectionGone::new_err(error.to_string()),
            },
            Failure::Compression(error) => CompressionFailure::new_err(error.to_string()),
            Failure::Server(error) => match &error {
                ServerError::Bind { source, .. } => {
                    PyOSError::new_err((source.raw_os_error(), error.to_string()))
                }
                ServerError::Threads(_) => PyOSError::new_err(error.to_string()),
                ServerError::SecondPlane | ServerError::PlaneStopped => {
                    PyRuntimeError::new_err(error.to_string())
                }
                ServerError::BadAddress { .. } | ServerError::BadRelay(_) => {
                    PyValueError::new_err(error.to_string())
                }
                ServerError::ConnectionGone(_) | ServerError::OutputFull { .. } => {
                    ConnectionGone::new_err(error.to_string())
                }
                ServerError::NoRecord(_) => PyLookupError::new_err(error.to_string()),
                ServerError::Store(_) | ServerError::NotFlushed => StoreFailure::new_err(error.to_string()),
                ServerError::Frame(_) => FrameError::new_err(error.to_string()),
            },
        }
    }
}

/// Runs `work` without holding the interpreter.
pub fn enter<T: Send, E: Into<Failure> + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    Ok(py.detach(work).map_err(Into::<Failure>::into)?)
}

/// Runs work that cannot fail, without holding the interpreter.
pub fn enter_infallible<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(work)
}
