"""Rooms as a whole: exports, backups, and moves from one store to another."""
