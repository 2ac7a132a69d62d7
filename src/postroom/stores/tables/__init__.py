"""The common part of the stores with tables in this process: memory and files."""
