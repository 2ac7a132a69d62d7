"""Rooms in one SQLite file: any number of processes, no server."""
