"""The command that agent programs are told to start: one that is still there tomorrow.

`uvx`, `pipx run` and a virtual environment in a temporary folder run Postroom from a place that is cleared without warning.
An entry that names such a place works today and fails silently later. So the entry names a `postroom` on the PATH that
stays, and where there is none, installing is refused (tests/doors/test_install_lasting.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from postroom.errors import PostroomError

#: Marks a folder as a cache (bford.info/cachedir): uv and pipx put it into theirs.
CACHE_TAG: Final = "CACHEDIR.TAG"
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  looked for, never written to
#: A program on the PATH gets this long to say its version, in seconds.
PATIENCE_S: Final = 20.0


class NotLasting(PostroomError):
    """Postroom runs from a place that is cleared without warning, and there is no other on the PATH."""


def own_command() -> list[str]:
    """How this very installation of Postroom is started, from anywhere."""
    script = Path(sys.executable).with_name("postroom")
    return [str(script)] if script.is_file() else [sys.executable, "-P", "-m", "postroom"]


def lasting_command(beside: Path) -> list[str]:
    """A command for settings that stand in the folder `beside`. NotLasting where there is none that stays."""
    passing = passing_folder(Path(sys.prefix), beside)
    if passing is None:
        return own_command()
    found = _on_path(beside)
    if found is None:
        wanted = shlex.quote(f"postroom[all]{_origin()}")
        raise NotLasting(
            f"this Postroom runs from {sys.prefix}, in a {passing} folder that is cleared without warning, and there is "
            f"no other on the PATH: an entry that starts it would break. Install it permanently, then run its "
            f"`postroom install`: uv tool install {wanted}, or: pipx install {wanted}. Nothing was changed"
        )
    return [found]


def passing_folder(place: Path, beside: Path) -> str | None:
    """Whether a place is a "cache" or a "temporary" one; None for one that stays.

    Settings in a temporary folder are no less temporary than what they name. The tag of a virtual environment itself says
    only that it can be made again.
    """
    place = Path(os.path.realpath(place))
    if any((folder / CACHE_TAG).is_file() for folder in place.parents):
        return "cache"
    temporary = [Path(os.path.realpath(folder)) for folder in (tempfile.gettempdir(), *TEMPORARY)]
    inside = [any(folder in Path(os.path.realpath(each)).parents for folder in temporary) for each in (place, beside)]
    return "temporary" if inside == [True, False] else None


def _on_path(beside: Path) -> str | None:
    """A `postroom` on the PATH that stays, and says that it is one; those of uvx stand first, and are passed over."""
    for folder in os.get_exec_path():
        script = shutil.which("postroom", path=folder) if os.path.isabs(folder) else None
        # the folder of its environment: above bin
        if script is None or passing_folder(Path(os.path.realpath(script)).parent.parent, beside) is not None:
            continue
        try:
            said = subprocess.run([script, "--version"], capture_output=True, timeout=PATIENCE_S, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.startswith(b"postroom "):
            return script
    return None


def extra_line(extra: str) -> str:
    """The command that adds an extra to this installation. uv and pipx replace what they installed, and have no pip in it."""
    everything = shlex.quote(f"postroom[all]{_origin()}")
    for receipt, installer in (("uv-receipt.toml", "uv tool"), ("pipx_metadata.json", "pipx")):
        if os.path.isfile(os.path.join(sys.prefix, receipt)):
            return f"{installer} install --force {everything}"
    return f"pip install 'postroom[{extra}]'"


def _origin() -> str:
    """Where this Postroom was installed from, as installers write it, if that was no package index (PEP 610)."""
    try:
        told = metadata.distribution("postroom").read_text("direct_url.json")
        url: str = msgspec.json.decode(told or "{}").get("url", "")
    except (metadata.PackageNotFoundError, msgspec.DecodeError):
        url = ""
    return f" @ {url}" if url else ""
