"""A variational autoencoder of pictures, convolutional, by Adam."""
import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    """Pictures of one bright spot."""

    def __init__(self, count, size=16, transform=None):
        rng = np.random.RandomState(0)
        centers = rng.uniform(3, size - 3, (count, 2))
        grid = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
        d = ((grid[None] - centers[:, :, None, None]) ** 2).sum(1)
        self.images = np.exp(-d / 8).astype("float32")
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        image = torch.from_numpy(self.images[idx]).unsqueeze(0)
        if self.transform:
            image = self.transform(image)
        return image, idx


class VAE(nn.Module):
    def __init__(self, latent_dim=6):
        super(VAE, self).__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1),
            nn.Flatten(),
        )
        self.fc_mu, self.fc_logvar = nn.Linear(16 * 4 * 4, latent_dim), nn.Linear(16 * 4 * 4, latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, 16 * 4 * 4), nn.ELU(), nn.Unflatten(1, (16, 4, 4)),
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, kernel_size=3, stride=2, padding=1, output_padding=1), nn.Sigmoid(),
        )

    def encode(self, x):
        h = self.encoder(x)
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return eps.mul(std).add_(mu)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar) if self.training else mu
        return self.decoder(z), mu, logvar


def loss_function(recon_x, x, mu, logvar, beta=0.5):
    BCE = F.binary_cross_entropy(recon_x.view(-1, 256), x.view(-1, 256), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + beta * KLD


def build():
    return VAE()


def train(model, epochs=5):
    torch.manual_seed(0)
    loader = DataLoader(Blobs(160), batch_size=16, shuffle=True, num_workers=0)
    test_loader = DataLoader(Blobs(40, transform=lambda image: image.clamp(0, 1)), batch_size=16)
    optimizer = optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    losses = []
    for epoch in range(1, epochs + 1):
        model.train()
        train_loss = 0
        for data, _ in loader:
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
            losses.append(loss.item() / len(data))
        scheduler.step()
        model.eval()
        test_loss = 0
        with torch.no_grad():
            for i, (data, _) in enumerate(test_loader):
                recon, mu, logvar = model(data)
                test_loss += loss_function(recon, data, mu, logvar).item()
                if i == 0:
                    comparison = torch.cat([data[:8], recon.view(16, 1, 16, 16)[:8]])
                    assert comparison.cpu().numpy().shape == (16, 1, 16, 16)
            sample = model.decoder(torch.randn(4, 6)).cpu()
        losses.append(test_loss / len(test_loader.dataset))
        print("====> Epoch: {} Average loss: {:.4f} samples {:.3f}..{:.3f}".format(
            epoch, train_loss / len(loader.dataset), sample.min(), sample.max()))
    return losses


if __name__ == "__main__":
    train(build())
