"""Settings of Codex: forms that people write, and files as Codex 0.166.0 itself left them (folder `codex_files`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Files that the real program wrote into after `postroom install codex`; only the paths in them were changed afterwards.
FILES: Final = Path(__file__).parent / "codex_files"

_SAY: Final = '{ hooks = [ { type = "command", command = "say" } ] }'
#: Valid settings into which a clumsy editor writes something invalid. Each has nothing of ours in it.
FORMS: Final = {
    "empty": "",
    "plain": '# mine\nmodel = "gpt-5" # why\n',
    "no last line end": 'model = "gpt-5"',
    "a byte order mark": '\ufeffmodel = "gpt-5"\n',
    "CRLF": 'model = "gpt-5"\r\n\r\n[mcp_servers.other]\r\ncommand = "x"\r\n',
    "inline servers": 'mcp_servers = { other = { command = "x" } }\n',
    "no servers inline": "mcp_servers = {}\n",
    "inline hooks": f"hooks = {{ Stop = [ {_SAY} ] }} # mine\n",
    "no hooks inline": "hooks = {}\n",
    "hooks in a list": f"[hooks]\nStop = [ {_SAY} ]\n",
    "hooks in a list of lines": f"[hooks]\nStop = [\n  # first\n  {_SAY}, # mine\n]\n\n[features]\napps = false\n",
    "an empty list of hooks": "hooks.Stop = []\n",
    "hooks in tables": '[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "say"\n# end\n',
    "handlers in a list": '[[hooks.Stop]]\nhooks = [{ type = "command", command = "say" }]\n',
    "dotted servers": 'mcp_servers.other.command = "x"\n',
    "dotted in a table": '[mcp_servers]\nother.command = "x"\n\n[tui]\ntheme = "x"\n',
    "headers in a text": 'instructions = """\n[mcp_servers.postroom]\n# postroom:start\n"""\n',
    "a comment like our old mark": '# postroom:start is a mark\nmodel = "gpt-5"\n# postroom:end of it\n',
}
