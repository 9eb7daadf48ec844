"""Node graph to Node graph: gradients and simplification."""
