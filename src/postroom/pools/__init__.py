"""Worker pools that judge messages, and the coordinator that decides who answers."""
