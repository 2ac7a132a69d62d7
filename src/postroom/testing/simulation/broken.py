"""What a judge raises."""

from __future__ import annotations


class Broken(BaseException):
    """A promise does not hold. No code of the product catches it for a failure of its own."""
