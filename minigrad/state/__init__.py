"""Weights in files and in models: one module per format, and `tree` for models as dictionaries."""
from minigrad.state.fetch import fetch_member
from minigrad.state.gguf import GGUFTensor, gguf_load
from minigrad.state.quantized import QuantizedTensor
from minigrad.state.safe import safe_load, safe_save
from minigrad.state.torch_file import torch_load
from minigrad.state.tree import get_parameters, get_state_dict, load_state_dict

__all__ = ["GGUFTensor", "QuantizedTensor", "fetch_member", "get_parameters", "get_state_dict", "gguf_load",
           "load_state_dict", "safe_load", "safe_save", "torch_load"]
