"""Rooms in plain files, for everybody who can read and write files."""
