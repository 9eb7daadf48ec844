"""Numbers that plans are judged by: facts of machines, and the sizes of their caches."""
