"""`postroom demo`: a program runs, agents talk, and one of them is killed half-way."""
