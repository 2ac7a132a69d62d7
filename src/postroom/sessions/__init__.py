"""Sessions: members that talk through mailboxes, run in processes of their own, and fail together."""
