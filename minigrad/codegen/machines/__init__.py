"""Facts of machines, and the sizes of their caches."""
