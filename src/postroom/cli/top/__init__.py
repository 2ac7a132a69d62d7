"""`postroom top`: the room, live in a terminal."""
