"""The operating system: processes, files, watched folders, forked children."""
