"""Patterns that kernels have, found by how their index variables are used."""
