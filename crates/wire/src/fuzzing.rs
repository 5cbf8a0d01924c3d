//! The bodies of the fuzz targets.
