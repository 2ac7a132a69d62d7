"""The plugins in plugins/ are what `postroom install` writes, with the `postroom` on the PATH, in the forms of their programs.

`python -m tests.house.test_plugins` writes them anew. `make test-agents` shows them to the programs' own validators.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT

from postroom import __version__
from postroom.doors.install import plans, texts

NAME = "postroom"
AUTHOR = {"name": "The Postroom authors"}
WISH = plans.Wish("claude-code", plans.USER, None, Path("/"), Path("/"), command=(NAME,))
README = f"""\
# Postroom

{texts.DESCRIPTION} Sessions of Claude Code, Codex, Gemini CLI and OpenCode that work in one project find each other, and
your own programs take part.

The plugin starts the command `postroom`, so install that first:

    uv tool install 'postroom[mcp]'        # or: pipx install 'postroom[mcp]'

Then run `postroom init` in your project. The agent has the tools `inbox`, `send`, `ack`, `reply`, `ask`, `board`, `who` and
`receipt`, is told of new mail between its steps, and, where its program allows that, is woken when it is idle.

Nothing is sent anywhere: the room is a folder of your project. Use either this plugin or `postroom install`, not both.
"""
OPENCODE_INDEX = """\
// The plugin as a package: it adds the server as well, which `postroom install opencode` writes into opencode.json.
import { Postroom as Hooks } from "./postroom.js"

const SERVER = %SERVER%

export const Postroom = async (input) => ({
  ...(await Hooks(input)),
  config: async (config) => {
    config.mcp = { postroom: SERVER, ...config.mcp }
  },
})
"""


def wanted() -> dict[str, str]:
    """Every file, by its path from the top of the checkout."""
    codex_manifest: dict[str, Any] = {
        "name": NAME,
        "version": __version__,
        "description": texts.DESCRIPTION,
        "author": AUTHOR,
        "license": "MIT",
        "skills": "./skills/",
        "mcpServers": "./.mcp.json",
        "hooks": "./hooks/hooks.json",
        "interface": {"displayName": "Postroom", "shortDescription": texts.DESCRIPTION, "category": "Productivity"},
    }
    entry = {"name": NAME, "source": "./plugins/postroom", "description": texts.DESCRIPTION}
    marketplace = {"name": NAME, "description": texts.DESCRIPTION, "owner": AUTHOR, "plugins": [entry]}
    found = {
        ".claude-plugin/marketplace.json": texts.pretty(marketplace),
        "plugins/postroom/.codex-plugin/plugin.json": texts.pretty(codex_manifest),
    }
    for step in (
        *plans.plugin_files(WISH, Path("plugins/postroom")),
        *plans.extension_files(WISH._replace(host="gemini"), Path("plugins/gemini")),
    ):
        assert isinstance(step, plans.Own)
        found[str(step.path)] = step.text
    return (
        found | opencode_files() | {f"plugins/{name}/README.md": README for name in ("postroom", "gemini", "opencode")}
    )


def opencode_files() -> dict[str, str]:
    entry, plugin, _skill = plans.steps_for(WISH._replace(host="opencode"))
    assert isinstance(entry, plans.JsonEntry)
    assert isinstance(plugin, plans.Own)
    package = {
        "name": "opencode-postroom",
        "version": __version__,
        "description": texts.DESCRIPTION,
        "license": "MIT",
        "author": AUTHOR["name"],
        "type": "module",
        "main": "index.js",
        "exports": "./index.js",
        "files": ["index.js", "postroom.js"],
    }
    return {
        "plugins/opencode/package.json": texts.pretty(package),
        "plugins/opencode/index.js": OPENCODE_INDEX.replace("%SERVER%", texts.pretty(entry.value).strip()),
        "plugins/opencode/postroom.js": plugin.text,
    }


def test_every_file_is_what_the_installer_writes() -> None:
    """When this fails: `python -m tests.house.test_plugins` writes them anew."""
    here = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("plugins", ".claude-plugin")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }

    assert here == wanted()


def loaded(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "path",
    [
        "plugins/postroom/.claude-plugin/plugin.json",
        "plugins/postroom/.codex-plugin/plugin.json",
        "plugins/gemini/gemini-extension.json",
        "plugins/opencode/package.json",
    ],
)
def test_a_manifest_has_the_release_s_version_and_names_files_that_are_there(path: str) -> None:
    manifest = loaded(path)
    folder = (ROOT / path).parent.parent if "-plugin/" in path else (ROOT / path).parent

    assert manifest["version"] == __version__
    named = [manifest.get(key) for key in ("skills", "mcpServers", "hooks", "main", "exports", "contextFileName")]
    assert [name for name in named if isinstance(name, str) and not (folder / name).exists()] == []


def test_the_marketplace_names_the_folder_of_the_plugin() -> None:
    (entry,) = loaded(".claude-plugin/marketplace.json")["plugins"]

    assert entry["source"].startswith("./")
    assert loaded(f"{entry['source']}/.claude-plugin/plugin.json")["name"] == entry["name"]


@pytest.mark.parametrize(("program", "longest"), [("postroom", 60), ("gemini", 60_000)])
def test_hooks_and_servers_have_the_shape_that_their_program_reads(program: str, longest: int) -> None:
    """Claude Code and Codex count seconds, Gemini CLI milliseconds; a hook is a line for a shell in all three."""
    hooks = loaded(f"plugins/{program}/hooks/hooks.json")["hooks"]
    handlers = [each for groups in hooks.values() for group in groups for each in group["hooks"]]
    settings = loaded("plugins/postroom/.mcp.json" if program == "postroom" else "plugins/gemini/gemini-extension.json")
    (server,) = settings["mcpServers"].values()

    assert len(hooks) >= 5
    assert {(each["type"], each["command"]) for each in handlers} == {("command", "postroom hook auto")}
    assert all(0 < each["timeout"] <= longest for each in handlers)
    assert (server["command"], server["args"]) == ("postroom", ["mcp"])


def write_all() -> None:
    for path, text in wanted().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
