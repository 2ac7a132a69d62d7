"""The contract of a language model: a prompt goes in, a text comes out, within a deadline or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from postroom.core.clock import SYSTEM
from postroom.errors import ModelError, ModelMissing

MAX_TOKENS: Final = 512
TIMEOUT_S: Final = 60.0


class Completion(NamedTuple):
    """What a model said, and what it cost. Counts are None where the model does not tell them."""

    text: str  # the answer
    model: str  # the model that gave it
    prompt_tokens: int | None = None  # of the question
    tokens: int | None = None  # of the answer
    first_byte_ms: float = 0.0  # from the call until the first byte of the answer
    total_ms: float = 0.0  # from the call until the end of the answer


class ModelRequest(NamedTuple):
    """What a model is asked: the arguments of `Model.complete`."""

    prompt: str
    system: str | None
    schema: Mapping[str, Any] | None
    max_tokens: int
    timeout_s: float


class ModelRefused(ModelError):
    """The server does not take the request as it is; another try will not change its mind."""


class ModelUnknown(ModelMissing):
    """The server is there, but has no such model, or not for us. Others may ask it for theirs."""


class Model(ABC):
    """A language model that can be asked. May be called from several threads at once."""

    #: Which kind it is, as in the first word of a spec.
    kind: ClassVar[str]
    #: Its name at its server or program; "" where that one's own default is used.
    name: str

    @property
    def spec(self) -> str:
        """What opens this model again."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def complete(
        self,
        prompt: str,
        *,
        system: str | None = None,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int = MAX_TOKENS,
        timeout_s: float = TIMEOUT_S,
    ) -> Completion:
        """Ask, and return what was answered.

        `schema` is a JSON schema that the answer is asked to obey. Not promised: that it does (models and servers cut
        answers short), nor that `max_tokens` is kept by programs that have no such option; parse what you get. Raises
        ModelTimeout when `timeout_s` has passed, whatever the other side does; ModelMissing when the server or program is
        not there; ModelError for everything else that is its fault. Nothing is left running then, but the system's
        lookup of a server's name, which cannot be ended.
        """
        started_ns = SYSTEM.steady_ns()
        said = self._answer(ModelRequest(prompt, system, schema, max_tokens, timeout_s))
        passed_ms = (SYSTEM.steady_ns() - started_ns) / 1e6
        return said._replace(first_byte_ms=said.first_byte_ms or passed_ms, total_ms=passed_ms)

    @abstractmethod
    def _answer(self, asked: ModelRequest) -> Completion:
        """The same, without the time that it took."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Let go of connections. Safe to call twice."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"
