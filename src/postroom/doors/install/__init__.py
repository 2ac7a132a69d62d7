"""`postroom install`: what is written into the settings of agent programs, and how all of it is taken out again."""
