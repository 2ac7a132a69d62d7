"""Models of an Ollama server, through its official client. The bytes go over our own wire, for its deadlines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar, Final
from urllib.parse import urlsplit

from postroom.errors import ModelError, ModelMissing

from . import http
from .model import Completion, ModelRefused, ModelRequest, ModelUnknown
from .throttle import ServerModel

try:
    import httpx
    import ollama
except ImportError as missing:  # pragma: no cover  (in the project's own environment it is installed)
    raise ModelMissing(f"the Ollama client is not installed ({missing}): pip install 'postroom[ollama]'") from missing

DEFAULT_URL: Final = "http://127.0.0.1:11434"
DEFAULT_PORT: Final = 11434
#: Its own client reads a key from there, and sends it.
KEY_VARIABLE: Final = "OLLAMA_API_KEY"
#: How long the server keeps the model in memory after an answer: personas speak again soon.
KEEP_ALIVE: Final = "10m"


class OllamaModel(ServerModel):
    """A model by its name at an Ollama server; the server is the one of OLLAMA_HOST unless a URL is given.

    Temperature 0 and a fixed seed: the same question to the same model gets the same answer.
    """

    kind: ClassVar[str] = "ollama"

    def __init__(self, name: str, url: str | None = None) -> None:
        super().__init__(name, server_url(url or os.environ.get("OLLAMA_HOST") or DEFAULT_URL))

    def _ask(self, asked: ModelRequest, left_s: float) -> Completion:
        transport = _Transport(left_s)
        client = ollama.Client(host=self.url, transport=transport)
        try:
            # num_predict and temperature count only inside options; at the top level a server passes over them
            parts = client.generate(
                model=self.name,
                prompt=asked.prompt,
                system=asked.system or "",
                format=None if asked.schema is None else dict(asked.schema),
                options={"num_predict": asked.max_tokens, "temperature": 0.0, "seed": 0},
                keep_alive=KEEP_ALIVE,
                think=False,
                stream=True,
            )
            return self._gather(parts, transport)
        except ollama.ResponseError as refused:
            raise self._refused(refused) from None
        except (httpx.HTTPError, ValueError, TypeError, KeyError, AttributeError) as trouble:
            raise http.ServerBroken(
                f"Ollama at {self.url} sent an invalid answer ({type(trouble).__name__}: {trouble})"
            ) from trouble
        finally:
            transport.close()

    def _gather(self, parts: Iterator[ollama.GenerateResponse], transport: _Transport) -> Completion:
        said: list[str] = []
        for part in parts:
            said.append(part.response or "")
            if part.done:
                assert transport.answer is not None
                first_byte_ms = transport.answer.first_byte_ms
                return Completion("".join(said), self.spec, part.prompt_eval_count, part.eval_count, first_byte_ms)
        raise http.ServerBroken(f"the answer from Ollama at {self.url} broke off after {len(said)} parts")

    def _refused(self, refused: ollama.ResponseError) -> ModelError:
        if refused.status_code == 404:
            return ModelUnknown(
                f"Ollama at {self.url} has no model {self.name!r} ({refused.error}); get it with: ollama pull {self.name}"
            )
        if refused.status_code >= 500:
            return http.ServerBroken(f"Ollama at {self.url} failed (HTTP {refused.status_code}: {refused.error})")
        return ModelRefused(f"Ollama at {self.url} refused (HTTP {refused.status_code}: {refused.error})")


class _Transport(httpx.BaseTransport):
    """What the client sends its one request through."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.answer: http.Answer | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        ours = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ours}
        answer = http.send(request.method, str(request.url), request.read(), headers, self._timeout_s)
        self.answer = answer
        kept = {name: value for name, value in answer.headers.items() if name == "content-type"}
        return httpx.Response(answer.status, headers=kept, content=answer.chunks())

    def close(self) -> None:
        if self.answer is not None:
            self.answer.close()


def server_url(said: str) -> str:
    """The address of a server as OLLAMA_HOST may say it: the port is 11434 and the scheme http unless given."""
    http.check_address(said, KEY_VARIABLE)
    parts = urlsplit(said if "://" in said else f"http://{said}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise ModelMissing(
            f"{said!r} is not the address of an Ollama server; expected something like http://127.0.0.1:11434"
        )
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
    return (
        f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else DEFAULT_PORT)}{parts.path.rstrip('/')}"
    )
