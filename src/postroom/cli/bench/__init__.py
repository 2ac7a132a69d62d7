"""How fast Postroom is, next to its peers, on this machine: `postroom bench`.

Works are measured for every peer that is installed, in rounds, one peer after the other within each, and the medians are
compared. What each work is stands in `plan.py`; each peer is one file under `peers/`; every measured process is
`worker.py`. Adding a peer is one file and one line in `peers/__init__.py`.
"""
