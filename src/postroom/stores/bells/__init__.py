"""Waking across threads and processes without polling: a shared page, and one socket for each waiting process."""
