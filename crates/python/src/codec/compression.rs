//! `compress` and `decompress`: Python's way to the formats of [`metaq_client::CompressionFormat`].

use metaq_client::CompressionFormat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::enter;

fn format_of(name: &str) -> PyResult<CompressionFormat> {
    CompressionFormat::from_name(name)
        .ok_or_else(|| PyValueError::new_err(format!("there is no compression {name:?}")))
}

#[pyfunction]
#[pyo3(signature = (format, data))]
pub fn compress<'py>(py: Python<'py>, format: &str, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let format = format_of(format)?;
    let compressed = enter(py, || metaq_client::compress(format, data))?;
    Ok(PyBytes::new(py, &compressed))
}

#[pyfunction]
#[pyo3(signature = (format, data, bytes_max))]
pub fn decompress<'py>(
    py: Python<'py>,
    format: &str,
    data: &[u8],
    bytes_max: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let format = format_of(format)?;
    let body = enter(py, || metaq_client::decompress(format, data, bytes_max))?;
    Ok(PyBytes::new(py, &body))
}
