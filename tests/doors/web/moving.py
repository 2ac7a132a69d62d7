"""A moving picture from screenshots: an animated WebP, whose frames Chromium itself encodes.

Each frame holds only the rectangle that differs from the one before, so a minute of a page takes little more than one
picture of it. The container is put together here: https://developers.google.com/speed/webp/docs/riff_container
"""

from __future__ import annotations

import base64
import struct
from typing import Any, Final, NamedTuple

#: Draws the frames one after the other; gives back each one's changed rectangle and its picture. `1` is without loss.
ENCODE: Final = """async frames => {
    const canvas = document.createElement('canvas'), part = document.createElement('canvas')
    const whole = canvas.getContext('2d', { alpha: false, willReadFrequently: true })
    const some = part.getContext('2d', { alpha: false })
    let before = null
    const encoded = []
    for (const frame of frames) {
        const image = new Image()
        image.src = 'data:image/png;base64,' + frame
        await image.decode()
        canvas.width = image.width, canvas.height = image.height
        whole.drawImage(image, 0, 0)
        const now = new Uint32Array(whole.getImageData(0, 0, canvas.width, canvas.height).data.buffer)
        let left = canvas.width, top = canvas.height, right = -1, bottom = -1
        for (let at = 0; at < now.length; at += 1) {
            if (before && before[at] === now[at]) continue
            const x = at % canvas.width, y = (at - x) / canvas.width
            left = Math.min(left, x), right = Math.max(right, x)
            top = Math.min(top, y), bottom = Math.max(bottom, y)
        }
        before = now
        if (right < 0) left = top = right = bottom = 0
        left -= left % 2, top -= top % 2
        part.width = right - left + 1, part.height = bottom - top + 1
        some.drawImage(canvas, -left, -top)
        const blob = await new Promise(done => part.toBlob(done, 'image/webp', 1))
        const bytes = new Uint8Array(await blob.arrayBuffer())
        const text = Array.from(bytes, byte => String.fromCharCode(byte)).join('')
        encoded.push({ left, top, width: part.width, height: part.height, data: btoa(text) })
    }
    return { width: canvas.width, height: canvas.height, encoded }
}"""


class Frame(NamedTuple):
    """A screenshot, and for how long it is shown."""

    png: bytes
    ms: int


def moving(page: Any, frames: list[Frame], loops: int = 0) -> bytes:
    """The frames as an animated WebP, made in a browser's blank page; `loops=0` is for ever."""
    made = page.evaluate(ENCODE, [base64.b64encode(frame.png).decode() for frame in frames])
    animation = 2
    head = struct.pack("<I", animation) + _u24(made["width"] - 1) + _u24(made["height"] - 1)
    chunks = [_chunk(b"VP8X", head), _chunk(b"ANIM", struct.pack("<IH", 0xFFFFFFFF, loops))]
    without_blending = 2
    for frame, part in zip(frames, made["encoded"], strict=True):
        place = (part["left"] // 2, part["top"] // 2, part["width"] - 1, part["height"] - 1, frame.ms)
        picture = _picture(base64.b64decode(part["data"]))
        chunks.append(_chunk(b"ANMF", b"".join(map(_u24, place)) + bytes([without_blending]) + picture))
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _picture(file: bytes) -> bytes:
    """The chunk of a still WebP that holds its pixels."""
    at = 12
    while file[at : at + 4] not in {b"VP8 ", b"VP8L"}:
        at += 8 + _even(struct.unpack_from("<I", file, at + 4)[0])
    return file[at : at + 8 + _even(struct.unpack_from("<I", file, at + 4)[0])]


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _even(size: int) -> int:
    return int(size + size % 2)


def _u24(number: int) -> bytes:
    return struct.pack("<I", number)[:3]
