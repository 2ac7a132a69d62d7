"""How others come in: hooks, MCP, the page, and what is installed into agent programs. Only cli imports a door."""
