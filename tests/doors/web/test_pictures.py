"""The pictures of the documents: each frame of the moving ones is what the browser showed, and all of them are small."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.support import DOCS

from .browser import browsing, need_browser
from .moving import Frame, moving

MAX_BYTES = 500_000

#: A picture's frames as a browser shows them: for how long, and a sum over all bytes.
DECODE = """async ([type, text]) => {
    const data = Uint8Array.from(atob(text), letter => letter.charCodeAt(0))
    const decoder = new ImageDecoder({ data, type })
    await decoder.tracks.ready
    await decoder.completed
    const frames = []
    for (let n = 0; n < decoder.tracks.selectedTrack.frameCount; n += 1) {
        const { image } = await decoder.decode({ frameIndex: n })
        const context = new OffscreenCanvas(image.displayWidth, image.displayHeight).getContext('2d')
        context.drawImage(image, 0, 0)
        const bytes = context.getImageData(0, 0, image.displayWidth, image.displayHeight).data
        frames.push([image.duration / 1000, bytes.reduce((sum, byte) => (sum * 31 + byte) % 1000003, 7)])
    }
    return frames
}"""


@pytest.mark.slow
def test_every_frame_of_a_moving_picture_is_the_screenshot_it_was_made_from() -> None:
    need_browser()

    def decoded(page: Any, type: str, data: bytes) -> Any:
        return page.evaluate(DECODE, [type, base64.b64encode(data).decode()])

    with browsing(width=201, height=120) as page:
        page.route("http://localhost/", lambda route: route.fulfill(body=""))  # decoders are for trusted origins alone
        page.goto("http://localhost/")
        frames = []
        for x in (3, 50, 50, 121):
            page.set_content(f'<p style="position:absolute;left:{x}px;top:{x}px">here</p><b>always</b>')
            frames.append(Frame(page.screenshot(), 100 + x))

        shown = decoded(page, "image/webp", moving(page, frames))

        stills = [decoded(page, "image/png", frame.png)[0][1] for frame in frames]
    assert shown == [[frame.ms, still] for frame, still in zip(frames, stills, strict=True)]
    assert len(set(stills)) == 3


def test_the_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").iterdir()}

    assert sizes
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}
