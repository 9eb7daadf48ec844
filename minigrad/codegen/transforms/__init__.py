"""Loop IR to loop IR, a pass per file: a pure function whose docstring is its contract."""
