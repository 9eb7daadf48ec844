"""Random graphs: fused and compiled on the CPU against every operation by its numpy reference."""
import pytest
from support.random_graphs import run


@pytest.mark.parametrize("seed", range(60))
def test_random_graph(seed):
    run(seed)
