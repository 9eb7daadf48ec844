"""Builders of plans that are not steps: all of them are to become steps."""
