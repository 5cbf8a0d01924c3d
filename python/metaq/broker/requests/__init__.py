"""Handlers for the requests that Rust does not answer itself."""
