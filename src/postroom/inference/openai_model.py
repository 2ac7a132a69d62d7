"""Models of any server that speaks OpenAI's chat completions: llama.cpp, vLLM, and others.

By the standard library: one request and a stream of lines is all it takes, and the deadlines of our wire are what no
client of others has. A key is sent only when POSTROOM_MODEL_KEY names one for it (or to OpenAI itself).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from postroom.errors import ModelError, ModelMissing

from . import http
from .model import Completion, ModelRefused, ModelRequest, ModelUnknown
from .throttle import ServerModel

KEY_VARIABLE: Final = "POSTROOM_MODEL_KEY"
_OPENAI_HOST: Final = "api.openai.com"
_MAX_WORDS: Final = 300


class OpenAIModel(ServerModel):
    """A model by its name at a server whose address ends before `/chat/completions`."""

    kind: ClassVar[str] = "openai"

    def __init__(self, name: str, url: str) -> None:
        http.check_address(url, KEY_VARIABLE)
        parts = urlsplit(url)
        if not name or not parts.hostname or parts.scheme not in ("http", "https"):
            raise ModelMissing(
                "a model of such a server needs a name and an address, openai:NAME@URL, for instance "
                f"openai:qwen@http://127.0.0.1:8080/v1; the address here is {url!r}"
            )
        whole = url.rstrip("/") if parts.path.rstrip("/") else f"{parts.scheme}://{parts.netloc}/v1"
        super().__init__(name, whole)

    def _body(self, asked: ModelRequest) -> bytes:
        messages = [{"role": "system", "content": asked.system}] if asked.system else []
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [*messages, {"role": "user", "content": asked.prompt}],
            "max_tokens": asked.max_tokens,
            "temperature": 0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if asked.schema is not None:
            form = {"name": "answer", "schema": dict(asked.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return json.dumps(body).encode()

    def _ask(self, asked: ModelRequest, left_s: float) -> Completion:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json", **self._key()}
        answer = http.send("POST", f"{self.url}/chat/completions", self._body(asked), headers, left_s)
        with closing(answer):
            if answer.status != 200:
                raise self._refused(answer)
            try:
                return self._gather(answer)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as trouble:
                raise http.ServerBroken(
                    f"{self.url} sent an invalid answer ({type(trouble).__name__}: {trouble})"
                ) from trouble

    def _key(self) -> dict[str, str]:
        key = os.environ.get(KEY_VARIABLE)
        if not key and urlsplit(self.url).hostname == _OPENAI_HOST:
            key = os.environ.get("OPENAI_API_KEY")
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _gather(self, answer: http.Answer) -> Completion:
        said: list[str] = []
        usage: Mapping[str, Any] = {}
        finished = False
        for part in _parts(answer):
            if part.get("error"):
                raise http.ServerBroken(f"{self.url} failed in the middle of its answer: {_words(part['error'])}")
            usage = part.get("usage") or usage
            for choice in part.get("choices") or ():
                message = choice.get("delta") or choice.get("message") or {}
                said.append(message.get("content") or "")
                finished = finished or bool(choice.get("finish_reason"))
        if not finished:
            raise http.ServerBroken(f"the answer from {self.url} broke off after {len(said)} parts")
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        return Completion("".join(said), self.spec, *counts, first_byte_ms=answer.first_byte_ms)

    def _refused(self, answer: http.Answer) -> ModelError:
        try:
            said = _words(json.loads(answer.read()).get("error"))
        except (ValueError, AttributeError):
            said = "no reason given"
        sentence = f"{self.url} refused model {self.name!r} (HTTP {answer.status}: {said})"
        if answer.status == 404:
            return ModelUnknown(f"{sentence}; name another in POSTROOM_MODEL")
        if answer.status in (401, 403):
            return ModelUnknown(f"{sentence}; set {KEY_VARIABLE} to a key that it accepts")
        return http.ServerBroken(sentence) if answer.status >= 500 else ModelRefused(sentence)


def _parts(answer: http.Answer) -> Iterator[Mapping[str, Any]]:
    """The parts of an answer: events of a stream, or the one document of a server that does not stream."""
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        yield json.loads(answer.read())
        return
    for line in answer.lines():
        if line.startswith(b"data:"):
            said = line[5:].strip()
            if said == b"[DONE]":
                return
            yield json.loads(said)


def _words(error: Any) -> str:
    said = error.get("message", error) if isinstance(error, Mapping) else error
    return str(said)[:_MAX_WORDS]
