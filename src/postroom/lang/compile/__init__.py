"""From tree to Python: the compiler, the import hook, and programs built as plugins."""
