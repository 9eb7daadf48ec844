"""Policies: which plan a nest gets."""
