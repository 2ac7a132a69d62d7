"""The values of a running program, and what operators and attributes do with them."""
