"""From text to tree: lexer, parser, formatter, and the nodes that they make."""
