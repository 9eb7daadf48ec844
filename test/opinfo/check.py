"""The samples of one entry in one type: forward, gradient, second gradient, and what has to be refused."""
from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from minigrad import Tensor, config, jit
from minigrad.errors import CaptureError, InternalError, MinigradError

from .compare import cotangent, difference, other_equals, tolerances
from .convert import Unsupported, call_of, dtype_name, flat, from_torch, lazy_view
from .counterparts import INDICES, RANDOM, SIGNS, counterpart

REFUSALS = (MinigradError, TypeError, ValueError, IndexError, NotImplementedError)
DIRECTIONS = ("forward", "views", "captured", "gradient", "second", "errors")


@dataclass
class Count:
    """The number of samples that are right; `first` says what is wrong with the first one that is not."""

    right: int = 0
    total: int = 0
    left_out: int = 0
    first: str = ""

    def add(self, wrong: str | None) -> None:
        self.total += 1
        self.right += wrong is None
        self.first = self.first or wrong or ""


class Late(BaseException):
    """A sample that takes too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises Late inside after some seconds of the processor (in the main thread)."""
    def ring(*_: object) -> None:
        raise Late(f"took over {seconds} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def applicable(entry: Any, dtype: torch.dtype, direction: str) -> bool:
    """True where PyTorch itself has this on a CPU."""
    if direction == "errors":
        return entry.error_inputs_func is not None
    if direction in ("forward", "views", "captured"):
        return bool(entry.supports_dtype(dtype, "cpu"))
    return bool(dtype.is_floating_point and entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
                and (direction == "gradient" or entry.supports_gradgrad) and entry.name not in RANDOM)


def check(entry: Any, dtype: torch.dtype, direction: str, device: str = "NUMPY", limit: int = 100,
          seconds: int = 20) -> Count:
    """Runs at most `limit` samples, evenly chosen, each for at most some seconds."""
    count, run = Count(), counterpart(entry)
    assert run is not None
    torch.manual_seed(1)
    with warnings.catch_warnings(), config(device=device, check_indices=direction == "errors"):
        warnings.simplefilter("ignore")
        if direction == "errors":
            samples = [e.sample_input for e in entry.error_inputs("cpu")]
        else:
            samples = list(entry.sample_inputs("cpu", dtype, requires_grad=direction in ("gradient", "second")))
        late = 0
        for k in range(0, len(samples), -(-len(samples) // limit) or 1):
            if late > 2:
                count.add("earlier samples took too long")
                continue
            try:
                with limited(seconds):
                    wrong = _CHECKS[direction](entry, run, samples[k], dtype, device)
            except Unsupported:
                count.left_out += 1
            except Late as error:
                late += 1
                count.add(f"{_described(samples[k])}: {error}")
            else:
                count.add(wrong and f"{_described(samples[k])}: {wrong}")
    return count


def _described(sample: Any) -> str:
    """A call as text: tensors by their shapes."""
    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{dtype_name(value.dtype)}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)[:60]

    parts = [text(a) for a in (sample.input, *sample.args)] + [f"{k}={text(v)}" for k, v in sample.kwargs.items()]
    return f"({', '.join(parts)})"


def _failure(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


def _torch_result(entry: Any, sample: Any) -> Any:
    """PyTorch's result; Unsupported where it has none."""
    copied = sample.transform(lambda v: v.clone() if isinstance(v, torch.Tensor) and not v.requires_grad else v)
    try:
        result = entry.op(copied.input, *copied.args, **copied.kwargs)
    except Exception as error:
        raise Unsupported(f"PyTorch itself: {error}") from None
    if any(isinstance(r, torch.Tensor) and (r.is_complex() or r.layout != torch.strided) for r in flat(result)):
        raise Unsupported("a complex or sparse result")
    return result


_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def _widened(value: Any) -> Any:
    """A tensor, or a type that results are asked for in, as float64 where it is a narrower float."""
    if isinstance(value, torch.Tensor) and value.dtype in _NARROW:
        return value.detach().double().requires_grad_(value.requires_grad)
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def _precise(compute: Callable[[], list[Any]], count: int) -> list[Any]:
    """Results in float64, None for each where that fails."""
    try:
        found = compute()
    except Exception:
        found = []
    return found if len(found) == count else [None] * count


def _forward(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str,
             tensor: Callable[[torch.Tensor, str], Tensor] = from_torch) -> str | None:
    args, options = call_of(sample, device, lambda t: tensor(t, device))
    process = sample.output_process_fn_grad if entry.name in SIGNS else lambda result: result
    expected = flat(process(_torch_result(entry, sample)))
    precise = _precise(lambda: flat(process(_torch_result(entry, sample.transform(_widened)))), len(expected))
    try:
        got = flat(process(run(*args, **options)))
        drawn = entry.name in RANDOM or sample.kwargs.get("dropout_p")
        if other_equals(entry, sample, got, expected):
            got, expected, precise = got[:-1], expected[:-1], precise[:-1]
        return _compared(entry, got, expected, precise, not drawn)
    except Exception as error:
        return _failure(error)


def _views(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str) -> str | None:
    """`_forward` of inputs that are parts of larger values, none of which is computed."""
    return _forward(entry, run, sample, dtype, device, lazy_view)


def _captured(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str) -> str | None:
    """`_forward` of a function that is captured once and replayed with other numbers."""
    if entry.name in RANDOM:
        raise Unsupported("drawn")

    def function(*tensors: Tensor) -> Any:
        given = iter(tensors)
        args, options = call_of(sample, device, lambda _: next(given))
        return run(*args, **options)

    again = jit(function)

    def replay(*args: Any, **options: Any) -> Any:
        return again(*tensors)

    for share in (1.0, 0.75, 0.5, 0.25):
        tensors: list[Tensor] = []
        def shrunk(v: Any, share: float = share) -> Any:
            return v * share if isinstance(v, torch.Tensor) and v.is_floating_point() and share != 1 else v

        scaled = sample.transform(shrunk)
        call_of(scaled, device, lambda t: tensors.append(from_torch(t, device).realize()))  # noqa: B023
        wrong = _forward(entry, replay, scaled, dtype, device)
        if wrong is not None:
            if wrong.startswith(CaptureError.__name__):
                raise Unsupported(wrong)
            return f"with numbers times {share}: {wrong}"
    return None


def _compared(entry: Any, got: list[Any], expected: list[Any], precise: list[Any], values: bool = True) -> str | None:
    if len(got) != len(expected):
        return f"expected {len(expected)} results, got {len(got)}"
    for g, e, p in zip(got, expected, precise, strict=True):
        narrow = entry.name in INDICES
        wrong = difference(g, e, p, tolerances(entry, getattr(e, "dtype", torch.float32)), narrow, values)
        if wrong is not None:
            return wrong
    return None


def _torch_gradients(entry: Any, sample: Any, order: int) -> list[torch.Tensor]:
    """The gradients of all tensors that ask for one, of the sum of float results times random numbers; of order 2,
    those of these gradients."""
    leaves: list[torch.Tensor] = []
    sample.transform(lambda v: leaves.append(v) if isinstance(v, torch.Tensor) and v.requires_grad else None)
    results = flat(sample.output_process_fn_grad(_torch_result(entry, sample)))
    used = [(k, r) for k, r in enumerate(results)
            if isinstance(r, torch.Tensor) and r.dtype.is_floating_point and r.requires_grad]
    if not leaves or not used:
        raise Unsupported("nothing to differentiate")
    found = torch.autograd.grad([r for _, r in used], leaves, [cotangent(r, k) for k, r in used],
                                create_graph=order == 2, materialize_grads=True)
    if order == 1:
        return list(found)
    second = [(k, g) for k, g in enumerate(found) if g.requires_grad]
    if not second:
        raise Unsupported("no second gradient")
    return list(torch.autograd.grad([g for _, g in second], leaves, [cotangent(g, 99 + k) for k, g in second],
                                    materialize_grads=True))


def _gradients(entry: Any, run: Any, sample: Any, device: str, order: int) -> list[Tensor]:
    """The same here."""
    leaves: list[Tensor] = []

    def tensor(t: torch.Tensor) -> Tensor:
        made = from_torch(t, device, t.requires_grad)
        if t.requires_grad:
            leaves.append(made)
        return made

    args, options = call_of(sample, device, tensor)
    results = flat(sample.output_process_fn_grad(run(*args, **options)))
    found = _weighted(results, 0).gradient(*leaves, materialize_grads=True)
    return found if order == 1 else _weighted(found, 99).gradient(*leaves, materialize_grads=True)


def _weighted(results: list[Any], first: int) -> Tensor:
    total: Any = None
    for k, r in enumerate(results):
        if isinstance(r, Tensor) and r.dtype.is_float:
            shape: Any = r.shape
            like = torch.empty(shape, dtype=getattr(torch, r.dtype.name))
            part = (r * from_torch(cotangent(like, first + k), r.device)).sum()
            total = part if total is None else total + part
    return total


def _gradient(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str, order: int = 1) -> str | None:
    call_of(sample, device, lambda t: from_torch(t, device))  # Unsupported is said before anything is computed
    if sample.kwargs.get("dropout_p"):
        raise Unsupported("drawn")
    try:
        expected = _torch_gradients(entry, sample, order)
    except RuntimeError as error:
        raise Unsupported(f"PyTorch itself: {error}") from None
    precise = _precise(lambda: list(_torch_gradients(entry, sample.transform(_widened), order)), len(expected))
    try:
        wrong = _compared(entry, list(_gradients(entry, run, sample, device, order)), expected, precise)
        if wrong and _chooses_others(entry, run, sample, device):
            raise Unsupported("equal elements, of which others are chosen")
        return wrong
    except Unsupported:
        raise
    except Exception as error:
        return _failure(error)


def _chooses_others(entry: Any, run: Any, sample: Any, device: str) -> bool:
    """True where results are other elements than PyTorch's, equal to them."""
    args, options = call_of(sample, device, lambda t: from_torch(t, device))
    return other_equals(entry, sample, flat(run(*args, **options)), flat(_torch_result(entry, sample)))


def _second(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str) -> str | None:
    return _gradient(entry, run, sample, dtype, device, 2)


def _errors(entry: Any, run: Any, sample: Any, dtype: torch.dtype, device: str) -> str | None:
    """The failure where a sample that PyTorch refuses is not refused in the same way; None where it is."""
    args, options = call_of(sample, device, lambda t: from_torch(t, device))
    if isinstance(sample.input, (int, float)) and entry.name != "arange":
        raise Unsupported("a number where the tensor of a method is")
    try:
        for part in flat(run(*args, **options)):
            if isinstance(part, Tensor):
                part.realize()
    except (InternalError, RecursionError) as error:
        return _failure(error)
    except REFUSALS:
        return None
    except Exception as error:
        return _failure(error)
    return "not refused"


_CHECKS: dict[str, Callable[..., str | None]] = {
    "forward": _forward, "views": _views, "captured": _captured, "gradient": _gradient, "second": _second,
    "errors": _errors}
