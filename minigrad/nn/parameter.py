"""Names of `torch.nn.parameter`."""
from minigrad.nn.module import Buffer as Buffer
from minigrad.nn.module import Parameter as Parameter
