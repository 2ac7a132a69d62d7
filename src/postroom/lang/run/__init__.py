"""Running programs: their entry, prompts, commands and reports."""
