"""The log of failures that no caller waits for: the logger "postroom"."""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("postroom")
