"""Tasks that agents take, each by one owner, and files that they reserve."""
