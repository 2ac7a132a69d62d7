"""Facts about time, messages and the operating system. Imports nothing of Postroom but its errors."""
