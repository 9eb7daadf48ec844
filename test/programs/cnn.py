"""Classifies small pictures by a residual network: SGD with a one-cycle schedule, smoothed labels, a checkpoint."""
import io

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset, random_split

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                                  nn.MaxPool2d(kernel_size=2))
        self.layer1, self.layer2 = BasicBlock(8, 8), BasicBlock(8, 16, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(p=0.0)
        self.fc = nn.Linear(16, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(self.dropout(x))


def data():
    rng = np.random.RandomState(0)
    y = rng.randint(0, 10, 260)
    x = rng.rand(260, 3, 16, 16).astype(np.float32) + (y[:, None, None, None] / 10).astype(np.float32)
    x = torch.from_numpy(x).sub(0.5).div(0.5)
    return TensorDataset(x, torch.from_numpy(y).long())


def build():
    return ResNet().to(device)


def evaluate(model, loader):
    model.eval()
    loss, correct, top5 = 0.0, 0, 0
    with torch.no_grad():
        for images, targets in loader:
            images, targets = images.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            outputs = model(images)
            loss += F.cross_entropy(outputs, targets, reduction="sum").item()
            pred = outputs.argmax(dim=1, keepdim=True)
            correct += pred.eq(targets.view_as(pred)).sum().item()
            _, best = outputs.topk(5, 1, True, True)
            top5 += best.t().eq(targets.view(1, -1).expand_as(best.t())).float().sum().item()
    total = len(loader.dataset)
    return loss / total, correct / total, top5 / total


def train(model, epochs=5):
    torch.manual_seed(1)
    train_set, test_set = random_split(data(), [200, 60])
    train_loader = DataLoader(train_set, batch_size=20, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=60)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(train_loader))
    losses, best = [], float("inf")
    checkpoint = io.BytesIO()
    for epoch in range(epochs):
        model.train()
        for batch_idx, (images, targets) in enumerate(train_loader):
            images, targets = images.to(device), targets.to(device)
            optimizer.zero_grad(set_to_none=True)
            outputs = model(images)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if batch_idx % 5 == 0:
                lr = optimizer.param_groups[0]["lr"]
                print(f"epoch {epoch} [{batch_idx * len(images)}/{len(train_loader.dataset)}] "
                      f"loss {loss:.4f} lr {lr:.4g}")
        val_loss, acc, top5 = evaluate(model, test_loader)
        print(f"validation: loss {val_loss:.4f} accuracy {100 * acc:.1f}% top 5 {100 * top5:.1f}%")
        losses.append(val_loss)
        if val_loss < best:
            best = val_loss
            checkpoint = io.BytesIO()
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    checkpoint.seek(0)
    state = torch.load(checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    losses.append(evaluate(model, test_loader)[0])
    assert abs(losses[-1] - best) < 1e-5
    return losses


if __name__ == "__main__":
    train(build())
