"""A hundred agents in one loop and one thread: each waits for its own mail, and a lead asks all of them at once.

python examples/asyncio_agents.py
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from typing import Any

import postroom


async def count_words(message: postroom.aio.Received) -> dict[str, Any]:
    return {"words": len(message.payload["text"].split())}


async def main(url: str) -> None:
    async with postroom.aio.open(url) as room:
        workers = [room.agent(f"worker-{number}") for number in range(100)]
        serving = [asyncio.create_task(worker.serve({"count": count_words}, concurrency=1)) for worker in workers]

        lead = room.agent("lead")
        pages = [" ".join(["word"] * number) for number in range(100)]
        answers = await asyncio.gather(
            *(lead.ask(worker.name, {"text": page}, type="count") for worker, page in zip(workers, pages, strict=True))
        )
        print("words counted:", sum(answer.payload["words"] for answer in answers))
        print("threads beside the loop's:", threading.active_count() - 1)

        try:
            async with asyncio.timeout(0.2):  # nobody writes to the lead
                await lead.receive()
        except TimeoutError:
            print("no mail for the lead, and nothing was left claimed:", (await room.stats()).states["claimed"] == 0)

        for task in serving:
            task.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:{folder}/room"))
