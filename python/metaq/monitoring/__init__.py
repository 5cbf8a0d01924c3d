"""Pages for monitoring a broker: metrics for Prometheus, and whether it is alive and ready.

- `web_server.py` serves `/metrics`, `/livez` and `/readyz` over HTTP.
- `shared_page.py` makes one page for all who wait for it.
- `broker_metrics.py` makes the page of a broker. The data plane writes the series that grow with topics and
  groups (`crates/server/src/metrics`), this package the few others.
- `text.py` is Prometheus' text format.
- `readiness.py` has the checks behind `/readyz`.
"""
