"""Stands in for `claude` and `codex`: tells how it was called, or misbehaves as AGENT_PROGRAM says. Run it by its path.

The real programs were tried with the same arguments; they are half a gigabyte each, and no part of the suite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(words: list[str]) -> int:
    given = sys.stdin.read()
    told = {"words": words, "given": given, "folder": os.getcwd(), "environment": dict(os.environ)}
    how = os.environ.get("AGENT_PROGRAM", "")
    if how.startswith("hang "):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(how.removeprefix("hang "), "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    if how == "fail":
        print("the key is not valid", file=sys.stderr)
        return 3
    if how == "flood":
        while True:
            sys.stdout.write("x" * 1_000_000)
    if how == "garbage":
        print("this is not JSON")
        return 0
    if "exec" in words:  # codex
        answer = words[words.index("--output-last-message") + 1]
        if how != "silent":
            with open(answer, "w", encoding="utf-8") as file:
                json.dump(told, file)
        print(json.dumps({"type": "turn.completed", "usage": {"input_tokens": 11, "output_tokens": 3}}))
    elif how == "error":
        print(json.dumps({"type": "result", "is_error": True, "result": "Not logged in"}))
    elif how == "structured":
        print(json.dumps({"is_error": False, "result": "", "structured_output": {"confidence": 0.5}, "usage": {}}))
    else:
        usage = {"input_tokens": 11, "output_tokens": 3}
        print(json.dumps({"is_error": False, "result": json.dumps(told), "usage": usage, "modelUsage": {"opus": {}}}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
