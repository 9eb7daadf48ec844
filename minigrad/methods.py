"""Every public method of `Tensor` as a function of its name. `minigrad.functions` has those that are not like their
method; both are names of the package, so that `import minigrad as torch` goes far.

`methods.pyi` lists them for type checkers; `python test/support/free_functions.py` writes it.
"""
from minigrad.unbound import unbound

globals().update(unbound())  # they hide what the language has by these names: nothing else stands here
