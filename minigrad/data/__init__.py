"""Data sets, and loaders that make batches of Tensors from them."""
from minigrad.data import augment
from minigrad.data.cache import CachedDataset
from minigrad.data.cifar import CIFAR10, CIFAR100
from minigrad.data.collate import default_collate, default_convert
from minigrad.data.dataset import (
    ArrayDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from minigrad.data.images import ImageFolder, read_image
from minigrad.data.keys import keys_of
from minigrad.data.loader import DataLoader
from minigrad.data.named import MNIST, FashionMNIST
from minigrad.data.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from minigrad.data.tokens import Characters, TextTokens
from minigrad.data.workers import get_worker_info

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "ArrayDataset",
    "BatchSampler",
    "CachedDataset",
    "Characters",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FashionMNIST",
    "ImageFolder",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TextTokens",
    "WeightedRandomSampler",
    "augment",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "keys_of",
    "random_split",
    "read_image",
]
