"""Language models, and evaluators that ask them.

from postroom.inference import open_model

model = open_model("ollama:llama3.2:3b")
print(model.complete("Say hello.", max_tokens=20, timeout_s=10).text)
"""

from __future__ import annotations

from .model import Completion, Model
from .opening import default_spec, open_model

__all__ = ["Completion", "Model", "default_spec", "open_model"]
