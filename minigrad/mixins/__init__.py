"""Tensor's methods, by topic. Each mixin inherits `base.Base` alone, and calls methods of others as methods of itself:
`operations.Operations` declares those, and says which file defines each. `all.AllMixins` puts them together.
"""
