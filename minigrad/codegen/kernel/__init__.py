"""The Kernel, a form of loop nests over values: its records, text, rules, interpreter, and what asks about them."""
