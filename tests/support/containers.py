"""Containers for tests, as far as Postroom can tell: processes in namespaces of their own, made with `unshare`."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

import pytest

#: The command line that puts a program into each kind of container.
CONTAINERS: Final = {
    "pid": ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
    "net": ["unshare", "--net"],
    "both": ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"],
    "no-proc": ["unshare", "--mount", "sh", "-c", 'umount -l /proc; exec "$@"', "sh"],
}


def _can_be_made() -> bool:
    return shutil.which("unshare") is not None and all(
        subprocess.run([*start, "true"], capture_output=True, check=False).returncode == 0
        for start in CONTAINERS.values()
    )


need_containers = pytest.mark.skipif(not _can_be_made(), reason="namespaces can only be made by root, with unshare")
