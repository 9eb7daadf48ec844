"""The backend "minigrad" of `torch.compile`. Needs torch, which finds it by the entry point of the installed package;
`torch.compile(model, backend=minigrad.torch_compile.backend)` does without one."""
from minigrad.torch_compile.compiler import backend

__all__ = ["backend"]
