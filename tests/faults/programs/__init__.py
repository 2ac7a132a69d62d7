"""The programs of the fault tests: real processes that send, receive, wait, and are killed. Each function is a role."""
