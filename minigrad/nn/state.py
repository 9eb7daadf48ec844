"""`minigrad.state` under the name that tinygrad users expect."""
from minigrad.state import (
    get_parameters,
    get_state_dict,
    gguf_load,
    load_state_dict,
    safe_load,
    safe_save,
    torch_load,
)

__all__ = [
    "get_parameters",
    "get_state_dict",
    "gguf_load",
    "load_state_dict",
    "safe_load",
    "safe_save",
    "torch_load",
]
