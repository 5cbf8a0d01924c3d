"""The pages of a server process: `/metrics`, `/livez` and `/readyz`."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from metaq.monitoring.broker_metrics import BrokerMetrics, Observed
from metaq.monitoring.readiness import check_broker, describe
from metaq.monitoring.text import CONTENT_TYPE
from metaq.monitoring.web_server import Response, WebServer

if TYPE_CHECKING:
    from metaq.broker import Broker


def broker_endpoints(broker: Broker, metrics: BrokerMetrics) -> WebServer:
    """Returns a server, not yet started, that shows how the broker does."""

    async def show_metrics() -> Response:
        page = await asyncio.to_thread(metrics.page, Observed.of(broker))
        return Response(HTTPStatus.OK, page, CONTENT_TYPE)

    async def show_readiness() -> Response:
        is_ready, text = describe(check_broker(broker))
        return Response(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, text.encode())

    async def show_life() -> Response:
        return Response(HTTPStatus.OK, b"ok\n")

    return WebServer({"/metrics": show_metrics}, {"/readyz": show_readiness, "/livez": show_life})
