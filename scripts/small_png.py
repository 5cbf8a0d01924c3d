"""Makes pictures of the screen small: a PNG with a palette of 256 colours, about a third of the size."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Final

import numpy
from numpy.typing import NDArray
from playwright.sync_api import Page

COLOURS_MAX: Final = 256
REGION_BITS: Final = 5
_READ_PIXELS: Final = """async (picture) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data;
  const reader = new FileReader();
  reader.readAsDataURL(new Blob([pixels]));
  await new Promise((done) => { reader.onload = done; });
  return [image.width, image.height, reader.result.split(",")[1]];
}"""


def with_palette(page: Page, png: bytes) -> bytes:
    """Returns the picture with its most frequent colours; the others become the nearest of these. An empty
    page decodes it."""
    width, height, encoded = page.evaluate(_READ_PIXELS, base64.b64encode(png).decode())
    pixels = (
        numpy.frombuffer(base64.b64decode(encoded), numpy.uint8).reshape(-1, 4)[:, :3].astype(numpy.int32)
    )
    colours, places, counts = numpy.unique(
        pixels[:, 0] << 16 | pixels[:, 1] << 8 | pixels[:, 2], return_inverse=True, return_counts=True
    )
    kept = _chosen(_parts(colours), counts)
    indexes = _nearest(_parts(colours), _parts(colours[kept])).astype(numpy.uint8)[places]
    rows = numpy.zeros((height, width + 1), numpy.uint8)  # each row begins with its filter: none
    rows[:, 1:] = indexes.reshape(height, width)
    palette = _parts(colours[kept]).astype(numpy.uint8).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )


def _chosen(colours: NDArray[numpy.int32], counts: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Returns the places of the colours that stay: of each region of the colour space the most frequent one,
    so that a small dot keeps its green, then the most frequent of all."""
    by_count = numpy.argsort(-counts, kind="stable")
    regions = (colours >> REGION_BITS)[by_count]
    keys = regions[:, 0] << 16 | regions[:, 1] << 8 | regions[:, 2]
    _, firsts = numpy.unique(keys, return_index=True)
    leaders = by_count[numpy.sort(firsts)[: COLOURS_MAX // 2]]
    others = by_count[~numpy.isin(by_count, leaders)]
    return numpy.concatenate([leaders, others])[:COLOURS_MAX]


def _parts(colours: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """Returns red, green and blue."""
    return numpy.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)


def _nearest(colours: NDArray[numpy.int32], palette: NDArray[numpy.int32]) -> NDArray[numpy.int64]:
    """Returns the place in the palette of each colour."""
    found = numpy.empty(len(colours), numpy.int64)
    for begin in range(0, len(colours), 1024):
        part = colours[begin : begin + 1024, None] - palette[None]
        found[begin : begin + 1024] = (part**2).sum(axis=2).argmin(axis=1)
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
