"""Fault tests: each file opens with its story and the invariant it checks. README.md tells them all on one screen."""
