"""Three workers share the jobs of one channel. One is killed in the middle of a job, and another gets that job.

python examples/work_queue.py
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile

import postroom


def worker(url: str, name: str) -> None:
    with postroom.open(url) as room:
        for job in room.agent(name).listen(channels=["jobs"], timeout_s=2):  # goes home when nothing came for 2 s
            number = job.payload["number"]
            if number == 3 and job.delivery_count == 1:
                print(f"{name}: job {number} ... and somebody pulls the plug", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            print(f"{name}: job {number} done (delivery {job.delivery_count})", flush=True)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/room"
        with postroom.open(url) as room:
            lead = room.agent("lead")
            ids = [lead.send(None, {"number": number}, channel="jobs") for number in range(8)]

            workers = [spawn.Process(target=worker, args=(url, name)) for name in ("ada", "bob", "cleo")]
            for process in workers:
                process.start()
            for process in workers:
                process.join()

            states = [room.receipt(id).state for id in ids]
            print(f"\n{states.count('acked')} of {len(ids)} jobs are done. What happened to job 3:")
            for event in room.receipt(ids[3]).events:
                print(f"  {event.time}  {event.event:9} {event.agent or '':5} {event.detail or ''}".rstrip())


if __name__ == "__main__":
    main()
