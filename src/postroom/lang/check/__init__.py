"""Mistakes found before anything runs: names, kinds, flow, and a rehearsal of the choreography."""
