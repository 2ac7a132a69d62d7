"""`postroom hook`: what agent programs call at each step."""
