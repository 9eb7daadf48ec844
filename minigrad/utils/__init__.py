"""Names of `torch.utils`."""
from minigrad.utils import checkpoint as checkpoint
