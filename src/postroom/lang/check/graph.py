"""The choreography as a Mermaid flowchart: which worker starts which, and the mailboxes between them."""

from __future__ import annotations

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import ParsedProgram

from .mail_uses import ANYWHERE, Part, delegates_of, parts_of, uses_of


def mermaid(program: ParsedProgram) -> str:
    """A flowchart: workers are boxes, mailboxes are round, a dotted arrow is `delegate`. Sorted as they are written."""
    parts = list(parts_of(program))
    ids = {part.name: f"w{place}" for place, part in enumerate(parts)}
    boxes: dict[str, str] = {}
    arrows: list[str] = []
    seen: set[str] = set()
    for part in parts:
        for name in _started_by(part, ids):
            arrows.append(f"{ids[part.name]} -.->|delegate| {ids[name]}")
            seen |= {part.name, name}
        for use in uses_of(part):
            box = boxes.setdefault(use.mailbox, f"m{len(boxes)}")
            one, other = (ids[part.name], box) if use.op == "send" else (box, ids[part.name])
            arrows.append(f"{one} --> {other}")
            seen.add(part.name)
    lines = ["flowchart LR"]
    lines += [f'    {ids[part.name]}["{_quoted(part.name)}"]' for part in parts if part.name in seen]
    lines += [f'    {id}(["{_quoted("any mailbox" if name == ANYWHERE else name)}"])' for name, id in boxes.items()]
    lines += [f"    {arrow}" for arrow in dict.fromkeys(arrows)]
    return "\n".join(lines) + "\n"


def _started_by(part: Part, known: dict[str, str]) -> list[str]:
    """The workers that a part calls: what it delegates to, also by way of a list."""
    if not delegates_of(part):
        return []
    callees = [node.callee for node in n.walk(part.function.body) if isinstance(node, n.Call)]
    names = [callee.name for callee in callees if isinstance(callee, n.Name)]
    names += [
        callee.name for callee in callees if isinstance(callee, n.MemberAccess) and isinstance(callee.object, n.Name)
    ]
    return list(dict.fromkeys(name for name in names if name in known))


def _quoted(name: str) -> str:
    return name.replace('"', "#quot;")
