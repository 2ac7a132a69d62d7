"""What stores with tables in this process share: memory and files."""
