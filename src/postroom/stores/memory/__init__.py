"""Rooms in the memory of one process: the reference for every other store."""
