"""What plans are counted by: facts of machines, and what their caches hold."""
