"""Worker pools that judge messages, and the coordinator that decides which of them answer."""
