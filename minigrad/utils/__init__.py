"""Names of `torch.utils`."""
from minigrad.utils import checkpoint as checkpoint
from minigrad.utils import data as data
