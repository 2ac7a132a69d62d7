"""Patchwork (`.pw`): write down who does what and who tells whom; the rooms, sessions and mailboxes are below.

patchwork.ebnf   the grammar, and the reference
source           a text, and places in it
nodes            the tree of a program
lexer            text to tokens, in four nested modes
cursor, parse_*, parser    tokens to a tree
problems         what is wrong, and where
modules          a program: the files that it imports
"""

from __future__ import annotations
