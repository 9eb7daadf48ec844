"""Node graph to Node graph: gradients. (Local simplification happens when a Node is made: ops/build.py.)"""
