"""Strategies: how one kernel's loops run. Read plan.py, then choose.py, then one strategy, then build.py."""
