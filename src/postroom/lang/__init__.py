"""Patchwork (`.pw`): write down who does what and who tells whom; the rooms, sessions and mailboxes are below.

patchwork.ebnf                         the grammar, and the reference
reading    source lexer cursor parse_* parser nodes problems modules         text to tokens to a tree; files that import
checking   builtins kinds scopes flow check_* check                          each function for itself
           mail_uses graph stand_ins rehearsal* stage choreography           all workers together
writing    fmt                                                               the one way
running    compile_* compiler schemas programs raised value* members runtime              a tree to Python, and what that calls
           commands shell_words pipeline shell files prompts human transcript      commands, models, people
           entries context running report plugin                             starting, telling, packing
"""

from __future__ import annotations
