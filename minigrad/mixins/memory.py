"""Questions of programs written for PyTorch about a tensor's memory: data without history, device, address."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, Self
from weakref import ref

from minigrad.dtype import BY_NAME, DType, to_dtype
from minigrad.engine.observe import dry_runs
from minigrad.engine.realize import working
from minigrad.engine.storage import next_id
from minigrad.errors import DeviceError, DTypeError, MinigradError
from minigrad.handles import changed, changed_by_user
from minigrad.mixins.base import Base, as_tensor
from minigrad.ops import build
from minigrad.ops.identity import own
from minigrad.ops.node import Node, apply
from minigrad.ops.storage import COPY, DETACH
from minigrad.stores import Store, at_once, store

datas: dict[int, tuple[ref[Any], ref[Any]]] = {}
"""By the id of what `data` gave, that handle and the tensor that it is the data of."""


def pass_on(tensor: Any) -> None:
    """Gives the new value of a handle to the tensor that it is the data of, if it is, and to all others that are data
    of the same one."""
    entry = datas.get(id(tensor))
    owner: Any = tensor if entry is None else entry[1]()
    if owner is None:
        return
    if owner is not tensor:
        _check_history("data", owner)
        owner._give(tensor)
        changed_by_user(owner)
    others = [data() for data, of in datas.values() if of() is owner]
    for found in others:
        if found is not None and found is not tensor:
            found._give(owner.detach())
            changed_by_user(found)


def assign_all(values: Iterable[tuple[Any, Node]]) -> None:
    """Assigns to each tensor a Node of its own type that no gradient comes through: to all of them, or to none where
    something from outside comes between."""
    stores, depths = list[Store](), list[tuple[Any, int]]()
    for t, node in values:
        stores += store(t, "node", own(build.assign(t.node, node))), store(t, "lazy_node", None)
        depths.append((t, max(t.node.depth, node.depth)))
    at_once(stores)
    for t, depth in depths:
        changed_by_user(t)
        if datas:
            pass_on(t)
        t._bound_graph_after(depth)


def _check_history(name: str, tensor: Any) -> None:
    if tensor.needs_grad and not tensor._is_leaf():
        raise MinigradError(f"[{name}] expected a leaf or a tensor without requires_grad to change the data of, got a "
                            f"result of shape {list(tensor.shape)}: write x + (value - x).detach() for another value "
                            "with the same history")


def settled(tensor: Any) -> Node:
    """The Node of a Tensor's present value, computed; nothing overwrites that while the caller refers to it, whatever
    other threads assign."""
    with working:
        while True:
            node: Node = tensor.realize().node
            if node.storage is not None or dry_runs:
                return node


class MemoryMixin(Base):
    __slots__ = ()

    @property
    def data(self) -> Self:
        """The values without history, for changes that no gradient knows of. Changes of it in place (`p.data.mul_(2)`,
        `p.data[0] = 1`) change this tensor too, and changes of this tensor change it. When it is set, the new value may
        have another shape and type."""
        data = self.detach()
        number, entry = id(data), datas.get(id(self))
        datas[number] = ref(data, lambda _: datas.pop(number, None)), ref(self) if entry is None else entry[1]
        return data

    @data.setter
    def data(self, value: Any) -> None:
        as_tensor("data", value)
        _check_history("data", self)
        if self._is_leaf() and not value.dtype.is_float:
            raise DTypeError(f"[data] expected a float type for a leaf with requires_grad=True, got {value.dtype}")
        for number, (_, owner) in list(datas.items()):
            if owner() is self:
                datas.pop(number, None)  # its memory is no longer this tensor's
        self._give(value.detach())
        changed_by_user(self)

    # Where it is

    def to(self, *target: Any, device: str | None = None, dtype: DType | str | None = None,
           non_blocking: bool = False, copy: bool = False) -> Any:
        """The same values on another device, in another type, or both: `to("CL")`, `to(dtypes.float16)` or
        `to("float16")`, `to("CL", dtypes.float16)`, or `to(other)` for those of another tensor.
        A device None is the configured one. `non_blocking` and `copy`, which may follow as positions, change nothing:
        nothing waits before values are read, and no handle sees what is assigned to another."""
        named = device is not None
        for given in target:
            if isinstance(given, bool):
                continue
            if isinstance(given, Base):
                device, dtype, named = given.device, given.dtype, True
            elif isinstance(given, DType) or isinstance(given, str) and given in BY_NAME:
                dtype = given
            else:
                device, named = given, True
        if dtype is None:
            name = self._device(device)
            return self if name == self.device else self._wrap(apply(COPY, self.node, device=name), self)
        kind = to_dtype(dtype)
        moved = self.to(device) if named and kind.bits > self.dtype.bits else self  # the wider type is where it is kept
        return moved.cast(kind).to(device) if named else moved.cast(kind)

    def to_(self, *target: Any, device: str | None = None, dtype: DType | str | None = None) -> Self:
        """`to`, of which this tensor is then the result: a leaf stays one, without the gradient that it had."""
        moved = self.to(*target, device=device, dtype=dtype)
        if moved is self:
            return self
        leaf = self._is_leaf()
        if leaf and not moved.dtype.is_float:
            raise DTypeError(f"[to_] expected a float type for a leaf with requires_grad=True, got {moved.dtype}")
        self.node = apply(DETACH, moved.node, id=next_id()) if leaf else own(moved.node)
        self.lazy_node = self.kept_grad = None
        changed()
        return self

    def cuda(self, *_: Any, **__: Any) -> NoReturn:
        """Raises DeviceError: there is no CUDA."""
        raise DeviceError("[cuda] expected .to('CPU') or .to('CL'), got cuda(): GPUs are used through OpenCL; "
                          "`python -m minigrad devices` lists what there is")

    @property
    def is_cuda(self) -> bool:
        """False: GPUs are devices of OpenCL."""
        return False

    @property
    def is_cpu(self) -> bool:
        """True where the host computes with it."""
        return self.device in ("CPU", "NUMPY")

    def get_device(self) -> int:
        """-1 on the host, else the index of the OpenCL device."""
        index = self.device.partition(":")[2]
        return int(index) if index.isdecimal() else -1

    def pin_memory(self, device: Any = None) -> Self:
        """This tensor: there is no memory that copies start from faster."""
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """False: no tensor is made by `pin_memory`."""
        return False

    def is_shared(self) -> bool:
        """False: no tensor is seen by several processes."""
        return False

    def storage_offset(self) -> int:
        """0: every tensor begins where its memory does."""
        return 0

    def data_ptr(self) -> NoReturn:
        """Raises MinigradError: a lazy tensor's memory is another one from step to step."""
        raise MinigradError("[data_ptr] expected x is y, or x.numpy().ctypes.data of a copy, got data_ptr(): values "
                            "have no address of their own")
