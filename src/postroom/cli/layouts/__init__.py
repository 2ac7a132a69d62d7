"""`postroom init --layout`: files that several sessions of one project work by."""
