"""How fast Postroom is on this machine, and whether it loses anything under load: `postroom bench`.

Works are measured in rounds, and the medians are shown. What each work is stands in `plan.py`; every measured process is
`worker.py`. `bench/compare` in the repository measures other queues with the same works.
"""
