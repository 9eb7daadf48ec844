"""Programs that run without minigrad: object code of a call, its weights, a C header and a Python loader."""
