"""Patchwork (`.pw`): write down who does what and who tells whom; the rooms, sessions and mailboxes are below.

patchwork.ebnf   the grammar, and the reference
source           a text, and places in it
nodes            the tree of a program
lexer            text to tokens, in four nested modes
cursor, parse_*, parser    tokens to a tree
problems         what is wrong, and where
modules          a program: the files that it imports
check_*, flow, kinds, scopes       what is wrong with it before it runs
choreography, rehearsal, stage …   what is wrong with who tells whom
fmt, graph       a program in one form, and as a picture
compile_*, compiler    the tree to Python
runtime          what compiled programs call: values, members, shell, prompts, files
commands, shell, pipeline          commands as data, and running them
prompts, human, transcript         models, people, recorded answers
programs, running, entries, report a program as a module, its run, its errors told
plugin           a program as a plugin of Claude Code
"""

from __future__ import annotations
