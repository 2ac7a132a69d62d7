"""The test programs of the plain broker's source document.

The first two are run as they stand there, in a folder of their own: only the import was added. The third, three agents
that work together, was left to the reader; here they are processes.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import uuid
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import CommunicationSystem

pytestmark = pytest.mark.slow

IMPORT = "from postroom import CommunicationSystem\n"

SEND_RECEIVE = """\
# test_core.py
def test_send_receive():
    comm = CommunicationSystem(".")
    comm.initialize()

    # Send message
    msg_id = comm.send_message(
        from_agent="test-agent-01",
        message_type="test.ping",
        payload={"message": "hello"},
        channel="general"
    )

    # Receive message
    messages = comm.receive_messages(
        agent_id="test-agent-02",
        channels=["general"]
    )

    assert len(messages) == 1
    assert messages[0]['payload']['message'] == "hello"

    # Claim message
    claimed = comm.claim_message("test-agent-02", messages[0]['id'])
    assert claimed == True

    # Complete message
    comm.complete_message(messages[0]['id'])

    print("✓ Core messaging works")

if __name__ == "__main__":
    test_send_receive()
"""

REQUEST_RESPONSE = '''\
# test_request_response.py
import uuid
from threading import Thread
import time

def responder(comm):
    """Simulates context-manager responding to queries."""
    time.sleep(0.2)  # Simulate work

    messages = comm.receive_messages("context-manager", ["general"])
    for msg in messages:
        if msg['type'] == 'context.query':
            comm.claim_message("context-manager", msg['id'])

            # Send response
            comm.send_response(
                original_message=msg,
                response_payload={"context": {"ui_arch": "React"}}
            )

            comm.complete_message(msg['id'])

def test_request_response():
    comm = CommunicationSystem(".")
    comm.initialize()

    # Start responder thread
    Thread(target=responder, args=(comm,), daemon=True).start()

    # Send request
    correlation_id = str(uuid.uuid4())
    comm.send_message(
        from_agent="frontend-dev-01",
        message_type="context.query",
        payload={"query": "Need UI architecture"},
        to_agent="context-manager",
        channel="general",
        correlation_id=correlation_id
    )

    # Wait for response
    response = comm.wait_for_response(
        agent_id="frontend-dev-01",
        correlation_id=correlation_id,
        channels=["general"],
        timeout_seconds=5.0
    )

    assert response is not None
    assert response['payload']['context']['ui_arch'] == "React"

    print("✓ Request/Response works")

if __name__ == "__main__":
    test_request_response()
'''


@pytest.mark.parametrize(
    ("program", "says"),
    [(SEND_RECEIVE, "✓ Core messaging works\n"), (REQUEST_RESPONSE, "✓ Request/Response works\n")],
    ids=["send_receive", "request_response"],
)
def test_a_program_of_the_source_runs_unchanged(program: str, says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == says
    assert (tmp_path / ".claude" / "communications" / "messages.db").is_file()


def requester(root: str) -> dict[str, Any] | None:
    """Agent 1 asks, and leaves a note for whoever wants it."""
    correlation_id = str(uuid.uuid4())
    with CommunicationSystem(root) as comm:
        comm.send_message("frontend-dev", "note", {"text": "I am asking"})
        comm.send_message(
            "frontend-dev", "context.query", {"query": "ui"}, to_agent="context-manager", correlation_id=correlation_id
        )
        return comm.wait_for_response("frontend-dev", correlation_id, ["general"], timeout_seconds=30)


def context_manager(root: str) -> list[str]:
    """Agent 2 answers the first question, woken by the room instead of looking again and again."""
    with CommunicationSystem(root) as comm, postroom.open(comm.comm_dir) as room:
        comm.send_heartbeat("context-manager", "active")
        for _ in room.watch(after=0, timeout_s=30):
            for message in comm.receive_messages("context-manager", ["general"]):
                if message["type"] == "context.query" and comm.claim_message("context-manager", message["id"]):
                    comm.send_response(message, {"context": {"ui": "React"}})
                    comm.complete_message(message["id"])
                    return [message["payload"]["query"]]
    return []


def observer(root: str) -> list[tuple[str, str]]:
    """Agent 3 sees every step of every message, and takes none."""
    seen: list[tuple[str, str]] = []
    with postroom.open(Path(root) / ".claude" / "communications") as room:
        for change in room.watch(after=0, timeout_s=30):
            seen.append((change.event, change.message.type))
            assert room.peek(state=None)
            if {("answered", "context.query"), ("acked", "context.query.response")} <= set(seen):
                break
    return seen


def test_three_agents(tmp_path: Path) -> None:
    root = str(tmp_path)
    CommunicationSystem(root).initialize()
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as agents:
        watching = agents.submit(observer, root)
        answering = agents.submit(context_manager, root)
        asking = agents.submit(requester, root)
        answer, asked, seen = asking.result(60), answering.result(60), watching.result(60)

    assert answer is not None
    assert (answer["from_agent"], answer["payload"]) == ("context-manager", {"context": {"ui": "React"}})
    assert asked == ["ui"]

    steps = [("stored", "note"), ("stored", "context.query"), ("stored", "context.query.response")]
    assert [step for step in seen if step in steps] == steps
    assert {("answered", "context.query"), ("acked", "context.query.response")} <= set(seen)

    with postroom.open(tmp_path / ".claude" / "communications") as room:
        kept = {message.type: room.get(message.id) for message in room.peek(state=None)}
    hands = {type: [entry.agent for entry in message.ledger[1:]] for type, message in kept.items()}
    assert hands == {
        "note": [],
        "context.query": ["context-manager", "context-manager"],
        "context.query.response": ["frontend-dev", "frontend-dev"],
    }
