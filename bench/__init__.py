"""Measurements of minigrad's speed. Each prints what it measured; nothing here is a test."""
