"""Classifies the nodes of a graph by convolutions and attention along its edges, with a mask of what is known."""
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Linear, Module, Parameter, init


def add_self_loops(edge_index, num_nodes):
    loop = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
    return torch.cat([edge_index, loop.unsqueeze(0).repeat(2, 1)], dim=1)


def degree(index, num_nodes):
    out = torch.zeros((num_nodes,), device=index.device)
    return out.scatter_add_(0, index, torch.ones_like(index, dtype=out.dtype))


def softmax(src, index, num_nodes):
    """The softmax of the edges that point to the same node."""
    index = index.view(-1, 1).expand_as(src)
    top = src.new_full((num_nodes, src.size(1)), float("-inf")).scatter_reduce_(0, index, src.detach(), reduce="amax")
    out = (src - top.gather(0, index)).exp()
    total = src.new_zeros(num_nodes, src.size(1)).scatter_add_(0, index, out) + 1e-16
    return out / torch.gather(total, 0, index)


class GCNConv(Module):
    def __init__(self, in_channels, out_channels, bias=True):
        super().__init__()
        self.lin = Linear(in_channels, out_channels, bias=False)
        if bias:
            self.bias = Parameter(torch.empty(out_channels))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        self.lin.reset_parameters()
        if self.bias is not None:
            self.bias.data.zero_()

    def forward(self, x, edge_index):
        edge_index = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        deg_inv_sqrt = degree(col, x.size(0)).pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        x = self.lin(x)
        messages = norm.view(-1, 1) * x.index_select(0, row)
        out = torch.zeros_like(x).index_add_(0, col, messages)
        return out if self.bias is None else out + self.bias


class GATConv(Module):
    def __init__(self, in_channels, out_channels, heads=2, negative_slope=0.2):
        super().__init__()
        self.heads, self.out_channels, self.negative_slope = heads, out_channels, negative_slope
        self.lin = Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        init.xavier_uniform_(self.att_src, gain=init.calculate_gain("relu"))
        init.xavier_uniform_(self.att_dst)

    def forward(self, x, edge_index):
        n = x.size(0)
        src, dst = add_self_loops(edge_index, n).unbind(dim=0)
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        alpha = (x * self.att_src).sum(dim=-1)[src] + (x * self.att_dst).sum(-1)[dst]
        alpha = softmax(F.leaky_relu(alpha, self.negative_slope), dst, n)
        messages = (x[src] * alpha.unsqueeze(-1)).flatten(1)
        out = torch.zeros(n, self.heads * self.out_channels, dtype=x.dtype)
        out.scatter_add_(0, dst.view(-1, 1).expand(-1, out.size(1)), messages)
        return out


class Net(Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        # The norm takes a bias away: its gradient would be rounding, of which Adam makes whole steps.
        self.conv1, self.norm = GCNConv(features, hidden, bias=False), BatchNorm1d(hidden)
        self.conv2, self.lin = GATConv(hidden, hidden // 2), Linear(hidden * 2, classes)

    def forward(self, x, edge_index):
        h = F.relu(self.norm(self.conv1(x, edge_index)))
        h = torch.cat([h, F.elu(self.conv2(h, edge_index))], dim=-1)
        return F.log_softmax(self.lin(h), dim=1)


def data(nodes=60, classes=3, features=12):
    rng = np.random.default_rng(2)
    y = rng.integers(0, classes, nodes)
    pairs = [(i, j) for i in range(nodes) for j in range(i) if rng.random() < (0.2 if y[i] == y[j] else 0.02)]
    edge_index = torch.tensor(pairs + [(j, i) for i, j in pairs], dtype=torch.long).t().contiguous()
    x = torch.tensor(rng.random((nodes, features)) < 0.2 + 0.4 * np.eye(classes, features)[y]).float()
    perm = torch.from_numpy(rng.permutation(nodes))
    train_mask, test_mask = torch.zeros(nodes, dtype=torch.bool), torch.zeros(nodes).bool()
    train_mask[perm[:20]] = True
    test_mask[perm[20:]] = True
    return x, edge_index, torch.LongTensor(y), train_mask, test_mask


def build():
    return Net(12, 16, 3)


def train(model, epochs=50):
    x, edge_index, y, train_mask, test_mask = data()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    optimizer = torch.optim.Adam([
        dict(params=model.conv1.parameters(), weight_decay=5e-4),
        dict(params=[*model.norm.parameters(), *model.conv2.parameters(), *model.lin.parameters()], weight_decay=0),
    ], lr=0.01)
    losses, best_acc = [], 0
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.nll_loss(out[train_mask], y[train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if epoch % 10 == 0:
            model.eval()
            with torch.no_grad():
                out = model(x, edge_index)
                pred = out.max(dim=1)[1]
                accs = [int((pred[mask] == y[mask]).sum()) / int(mask.sum()) for mask in (train_mask, test_mask)]
                losses.append(F.nll_loss(out[test_mask], y[test_mask]).item())
            best_acc = max(best_acc, accs[1])
            print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {accs[0]:.4f}, Test: {accs[1]:.4f}")
    return losses


if __name__ == "__main__":
    train(build())
