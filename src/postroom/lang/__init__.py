"""Patchwork (`.pw`): a language for workers that send each other messages through mailboxes.

syntax/      lexer, recursive-descent parser, tree (`nodes`), formatter; `patchwork.ebnf` is the reference
check/       a linter and a type checker, each function for itself; a rehearsal of all workers together
compile/     a tree to Python's own tree, the import hook, and plugins
values/      values, attributes, operators, schemas, errors
run/         the runner: settings, commands, prompts, people, transcripts, reports
runtime      the functions that compiled programs call
builtins     the names that every program knows
"""

from __future__ import annotations
