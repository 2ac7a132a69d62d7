"""The store contract as a suite of tests, for every store that claims to keep it.

    from postroom.testing import StoreContract

    class TestMyStore(StoreContract):
        def open(self, clock, config):
            return MyStore(self.folder, config, clock)

Run it with pytest. `self.folder` is a path of this test's own that does not exist yet. The first call of `open` in a
test makes a room; later calls in the same test open the same room again, where the store is durable or shared.

What a store cannot do it says on its class (`durable = False`); the tests of that ability are then skipped, with the
reason. With `lacks = ("durable",)` on the test class they are not even collected.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "putting",
    "claiming",
    "ordering",
    "withdrawing",
    "limiting",
    "filling",
    "settling",
    "timing",
    "asking",
    "reading",
    "keeping",
    "restoring",
    "waking",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("workbench", *_PARTS)))

from .asking import Asking  # noqa: E402  (pytest must hear of the modules before they are imported)
from .claiming import Claiming  # noqa: E402
from .filling import FullMailboxes  # noqa: E402
from .keeping import Keeping  # noqa: E402
from .limiting import Limiting  # noqa: E402
from .ordering import Ordering  # noqa: E402
from .putting import Putting  # noqa: E402
from .reading import Reading  # noqa: E402
from .restoring import Restoring  # noqa: E402
from .settling import Settling  # noqa: E402
from .timing import Timing  # noqa: E402
from .waking import Waking  # noqa: E402
from .withdrawing import Withdrawing  # noqa: E402
from .workbench import StoreBench, gone_process, together  # noqa: E402

__all__ = ["StoreBench", "StoreContract", "gone_process", "together"]


class StoreContract(
    Putting,
    Claiming,
    Ordering,
    Withdrawing,
    Limiting,
    FullMailboxes,
    Settling,
    Timing,
    Asking,
    Reading,
    Keeping,
    Restoring,
    Waking,
):
    """Every promise of `postroom.stores.contract`. Derive from it, and say how to open your store."""
