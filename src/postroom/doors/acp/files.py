"""The files that an agent program may ask its host for: text in the project, and nothing that runs or leads out of it.

A path is resolved first and must then lie in the project. It is opened one part after the other, none of them a link: a
link that is put there in between is refused, not followed. A write replaces the file in one step, so that a hard link to
a file outside is left behind, not written through.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .peer import BAD_PARAMS, RpcError

MAX_BYTES: Final = 8 * 1024 * 1024
NOT_FOUND: Final = -32002
#: Folders that nothing is read from: what git runs, and the room's own messages and secrets.
CLOSED: Final = frozenset({".git", ".postroom"})
#: What programs take as settings, and run commands from: an agent's program may read them here and not change them.
SETTINGS: Final = frozenset(
    {
        *(".claude", ".codex", ".gemini", ".qwen", ".kimi", ".kimi-code", ".opencode", ".cline", ".clinerules"),
        *(".copilot", ".cursor", ".vscode", ".windsurf", ".idea", ".husky", ".direnv", ".devcontainer", ".zed"),
        *(".mcp.json", "opencode.json", "opencode.jsonc", ".envrc", ".gitmodules", ".gitattributes"),
        ".pre-commit-config.yaml",
    }
)
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refused(path: str, why: str) -> RpcError:
    """The refusal of one path."""
    return RpcError(BAD_PARAMS, f"{path}: {why}")


class ProjectFiles:
    """The text files below one folder."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file; from a line (the first is 1) on, and at most so many. RpcError when it may not be had."""
        parts = self.parts(path, writes=False)
        with self._folder(path, parts, make=False) as folder:
            try:
                descriptor = os.open(
                    parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
                )
            except FileNotFoundError:
                raise RpcError(NOT_FOUND, f"{path}: there is no such file") from None
            with open(descriptor, "rb") as file:
                _check(path, descriptor)
                raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise refused(path, f"it is larger than {MAX_BYTES >> 20} MiB")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise refused(path, "it is not UTF-8 text") from None
        if line is None and limit is None:
            return text
        begin = max(0, (line or 1) - 1)
        return "".join(text.splitlines(keepends=True)[begin : None if limit is None else begin + limit])

    def write(self, path: str, text: str) -> None:
        """Write a file, new or in place of the old one, in one step; its folder is made where there is none."""
        raw = text.encode()
        if len(raw) > MAX_BYTES:
            raise refused(path, f"it would be larger than {MAX_BYTES >> 20} MiB")
        parts = self.parts(path, writes=True)
        with self._folder(path, parts, make=True) as folder:
            mode = _mode_of(path, parts[-1], folder)
            spare = f".postroom-{os.getpid()}-{os.urandom(4).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(spare, flags, mode, dir_fd=folder), "wb") as file:
                    file.write(raw)
                    if mode != _NEW:
                        os.fchmod(file.fileno(), mode)
                os.replace(spare, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(spare, dir_fd=folder)

    def parts(self, path: str, *, writes: bool) -> tuple[str, ...]:
        """The names that lead from the project's folder to a file. RpcError for a path that may not be used."""
        if not os.path.isabs(path) or "\0" in path:
            raise refused(path, "the path must be absolute")
        real = os.path.realpath(path)
        try:
            parts = Path(real).relative_to(self.root).parts
        except ValueError:
            raise refused(path, "it is outside of the project") from None
        low = {part.lower() for part in parts}  # some file systems do not tell capitals
        if not parts or low & CLOSED:
            raise refused(path, "it is not open to agents")
        if writes and low & SETTINGS:
            raise refused(path, "settings that programs run commands from are changed by people alone")
        return parts

    @contextmanager
    def _folder(self, path: str, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
        """A descriptor of the folder that holds the last of these names."""
        at = os.open(self.root, _OPEN_FOLDER)
        try:
            for part in parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                below = os.open(part, _OPEN_FOLDER, dir_fd=at)
                os.close(at)
                at = below
            yield at
        except FileNotFoundError:
            raise RpcError(NOT_FOUND, f"{path}: there is no such file") from None
        except OSError as error:
            raise refused(path, str(error.strerror).lower()) from None
        finally:
            os.close(at)


_NEW: Final = 0o666  # the umask takes its part


def _check(path: str, descriptor: int) -> os.stat_result:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise refused(path, "it is not a regular file")
    return found


def _mode_of(path: str, name: str, folder: int) -> int:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return _NEW
    if not stat.S_ISREG(found.st_mode):
        raise refused(path, "it is not a regular file")
    return stat.S_IMODE(found.st_mode)
