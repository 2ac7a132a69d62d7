"""The git pre-commit hook that stops a commit of files which somebody else has reserved."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from postroom.cli import exit_codes
from postroom.errors import PostroomError

MARK: Final = "# postroom guard"
#: A hook that was there before is kept under this name, and called after ours.
BEFORE: Final = "pre-commit.before-postroom"

_HOOK: Final = """\
#!/bin/sh
{mark}: stops a commit that touches files reserved by another agent.
# `postroom reserve --guard` made it, `postroom unreserve --guard` removes it; `git commit --no-verify` skips it.
python={python}
[ -x "$python" ] || python=python3
git -c diff.relative=false diff --cached --name-only --no-renames -z | "$python" -P -m postroom reserve --check
[ $? -eq {reserved} ] && exit 1  # whatever else goes wrong there is no reason to stop a commit
before="$(dirname "$0")/{before}"
[ -x "$before" ] && exec "$before" "$@"
exit 0
"""


class NoGuard(PostroomError):
    """The hook cannot be installed or taken away here."""


def install(folder: Path) -> tuple[Path, str]:
    """Install the hook; twice is once. A hook from before is called after it. Returns its path, and what was done."""
    hook = hook_path(folder)
    text = _HOOK.format(mark=MARK, python=shlex.quote(sys.executable), reserved=exit_codes.RESERVED, before=BEFORE)
    if _is_ours(hook):
        if hook.read_text(encoding="utf-8") == text:
            return hook, "the guard is already installed"
    elif hook.exists() or hook.is_symlink():
        kept = hook.with_name(BEFORE)
        if kept.exists():
            raise NoGuard(f"both {hook} and {kept} exist and are not Postroom's; move one of them first")
        hook.rename(kept)
    hook.parent.mkdir(parents=True, exist_ok=True)
    made = hook.with_name(f"pre-commit.{os.getpid()}.new")
    made.write_text(text, encoding="utf-8")
    made.chmod(0o755)
    made.replace(hook)
    return hook, "the guard is installed"


def remove(folder: Path) -> tuple[Path, str]:
    """Take the hook away; one that was there before is put back. Returns its path, and what was done."""
    hook = hook_path(folder)
    if not _is_ours(hook):
        return hook, "no guard is installed"
    kept = hook.with_name(BEFORE)
    if kept.exists():
        kept.replace(hook)
        return hook, "the guard was removed, and the previous hook is back"
    hook.unlink()
    return hook, "the guard was removed"


def hook_path(folder: Path) -> Path:
    """Where git looks for the hook of the repository around a folder."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--git-path", "hooks"], cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise NoGuard("git is not installed, so there is nothing to guard") from None
    if asked.returncode != 0:
        raise NoGuard(f"{folder} is not in a git repository, so there is nothing to guard")
    return folder / asked.stdout.rstrip("\n") / "pre-commit"


def _is_ours(hook: Path) -> bool:
    try:
        return MARK in hook.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
