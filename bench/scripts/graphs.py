"""Networks of graphs."""
# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from bench.frameworks import Program, normal, trained


def graph_attention(m: Any, nodes: int = 1500, edges: int = 8000, features: int = 200, hidden: int = 8,
                    heads: int = 8, classes: int = 7) -> Program:
    """Two layers of attention along the edges of one graph; softmax by target with scatter_reduce and scatter_add."""
    class Layer(m.nn.Module):
        def __init__(self, inputs: int, outputs: int, heads: int):
            super().__init__()
            self.heads, self.outputs = heads, outputs
            self.linear = m.nn.Linear(inputs, heads * outputs, bias=False)
            self.source = m.nn.Parameter(m.M.randn(1, heads, outputs) * 0.1)
            self.target = m.nn.Parameter(m.M.randn(1, heads, outputs) * 0.1)

        def forward(self, x: Any, edges: Any) -> Any:
            n, (source, target) = x.shape[0], (edges[0], edges[1])
            h = self.linear(x).view(n, self.heads, self.outputs)
            score = (h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target]
            score = m.F.leaky_relu(score, 0.2)
            by_head = target.unsqueeze(-1).expand(-1, self.heads)
            most = m.M.full((n, self.heads), -1e9).scatter_reduce(0, by_head, score.detach(), "amax")
            share = (score - most[target]).exp()
            total = m.M.zeros(n, self.heads).scatter_add(0, by_head, share)
            share = share / (total[target] + 1e-16)
            return m.M.zeros(n, self.heads, self.outputs).index_add(0, target, h[source] * share.unsqueeze(-1))

    class Model(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(features, hidden, heads), Layer(hidden * heads, classes, 1)

        def forward(self, x: Any, edges: Any) -> Any:
            x = m.F.elu(self.first(x, edges).flatten(1))
            return m.F.log_softmax(self.second(x, edges).mean(1), dim=-1)

    model = Model()
    optimizer = m.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    step = trained(optimizer, lambda x, edges, y: m.F.nll_loss(model(x, edges), y))
    return Program([model], step, lambda rng: (
        normal(rng, nodes, features), rng.integers(0, nodes, (2, edges)), rng.integers(0, classes, nodes)))
