"""Style, scripts and icons. Their addresses name a digest of all of them, so browsers keep them for good."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(str(resources.files("metaq.console").joinpath("static")))


@cache
def static_version() -> str:
    """Returns a digest of all static files."""
    digest = hashlib.sha256()
    for file in sorted(FOLDER.rglob("*")):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def static_path(name: str) -> str:
    """Returns the path of a static file."""
    return f"/static/{static_version()}/{name}"


class VersionedFiles(StaticFiles):
    """Static files that never change at their address."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code < 400 and scope["path_params"].get("version") == static_version():
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


ROUTES = [Mount("/static/{version}", VersionedFiles(directory=FOLDER))]
