"""The README that a files room carries in its folder, for people and agents who come upon it."""

from __future__ import annotations

from typing import Final

README: Final = """\
# A mailbox made of files

Programs and agents leave messages for each other here. Postroom keeps it; whoever can read and write files takes part.

    inbox/NAME/            messages for the agent NAME, the oldest first
    inbox/_channel/NAME/   messages for whoever takes them first
    inbox/board/           messages for the board: `status`, `claim`
    outbox/NAME/           what NAME reported: `done`, `blocked`; reading it takes nothing away
    board/status.json      the tasks: who does what
    board/claims.json      who has claimed which task
    .postroom/             Postroom's own: look, but do not touch

## A message

One JSON file, called `TIME-ACTION.json`, for instance `20260209T223000.000000Z-implement.json`:

    {
      "from": "lead",
      "to": "worker-1",
      "action": "implement",
      "spec": "taskrunner",
      "task_id": "T3",
      "timestamp": "2026-02-09T22:30:00Z",
      "payload": {"notes": "T1 and T2 are done. You can start T3."}
    }

Only `payload` is really needed. Further fields may stand beside these, and are kept.

**To send**, write the file under another name and move it to `inbox/NAME/`: so nobody sees half of it.
A file that is not a whole message yet is left alone; after ten seconds without a change it goes to
`.postroom/rejected/`, with the reason beside it.

**To receive**, move a file out of your inbox. Whoever moves it first has it; the message counts as done.

**To answer**, send a message to whoever wrote `from`, with `"answer_to"` and the `id` of the question.

## The board

**To claim a task**, put your name into `board/claims.json`: `{"T1": {"owner": "NAME"}}`, or `{"T1": "NAME"}`. It is yours for
ten minutes if it still stands there a second later; otherwise an `info` in your inbox says why not.

**To change a task**, or add one, edit its entry under `tasks` in `board/status.json`.

What is not understood is kept in `.postroom/rejected/`, with the reason beside it, and the file is written anew. One that is
not JSON is left alone for ten seconds first.

## Actions

`implement` and `abort` go from the lead to a worker, `done` and `blocked` from a worker to the lead, `status`
and `claim` to the board, `info` from anyone to anyone.

With the command line: `postroom receive --as NAME --room files:DIR`, `postroom send TO '{"text": "hi"}' --as NAME`.
"""
