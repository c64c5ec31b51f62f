"""Noticing at little cost that the tensors which are the same in every call are others after all, lie elsewhere or were
changed.

A model has hundreds, its weights and its caches, and to ask each from Python takes longer than a launch.  So the
tensors are kept, and one call of the library compares the list of arguments with them, and their addresses and counts
of changes with what these were, through Python's and PyTorch's C interfaces.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from mpk import _library as c

address_of = torch.Tensor.data_ptr
version_of = operator.attrgetter("_version")


class References:
    """References to tensors for C, which keep the tensors' records; and where these are, side by side: an at::Tensor is
    no more, so each is one, too."""

    def __init__(self, tensors: Sequence[torch.Tensor], to: Interface) -> None:
        self.delete = to.delete
        self.array = [to.pointer(capsule, None) for capsule in to.refer(list(tensors))]
        records = [ctypes.c_void_p.from_address(reference).value for reference in self.array]
        self.records = (ctypes.c_void_p * len(tensors))(*records)

    def __del__(self) -> None:
        for reference in getattr(self, "array", ()):
            self.delete(reference)


class Interface:
    """What Python and this PyTorch offer to C; tensors are taken by reference (at::Tensor *).

    The count of changes has a C++ name only, that of `int64_t at::TensorBase::_version() const`.  It throws for one
    that has no count, which nobody may catch here; a tensor that has one keeps it, so those without are left out.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        self.item = ctypes.cast(ctypes.pythonapi.PyList_GetItem, ctypes.c_void_p)
        self.address = ctypes.cast(library.aoti_torch_get_data_ptr, ctypes.c_void_p)
        self.version = ctypes.cast(library["_ZNK2at10TensorBase8_versionEv"], ctypes.c_void_p)
        self.delete = library.aoti_torch_delete_tensor_object
        self.delete.argtypes = [ctypes.c_void_p]
        self.get_address = library.aoti_torch_get_data_ptr
        self.refer = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        self.pointer = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))
        self._look_at_one()

    def _look_at_one(self) -> None:
        """Make sure that an at::Tensor is a pointer to the tensor's record (c10::TensorImpl), and find what is read of
        one: where its storage is pointed to; in the PyTorch of today three words on its count of changes, and 17 to 20
        words on its offset, size and dtype.  To fetch these ahead, so an error there costs time only."""
        with torch.utils._python_dispatch._disable_current_modes():
            tensor = torch.empty(1, device="cpu")
        references = References([tensor], self)
        found = ctypes.c_void_p()
        if self.get_address(references.records, ctypes.byref(found)) or found.value != tensor.data_ptr():
            raise AttributeError("an at::Tensor is more than a pointer")
        words = (ctypes.c_uint64 * 5).from_address(references.records[0])[:]
        storage = tensor.untyped_storage()._cdata
        at = words.index(storage) * 8 if storage in words else 0
        self.follow = (at, at + 24) if at else (0, 0)
        self.read = (at, at + 24, at + 136, at + 160)


def _interface() -> Interface | None:
    try:
        return Interface()
    except (OSError, AttributeError):  # a PyTorch without it: tensors are asked from Python
        return None


interface = _interface()


def pick(indices: Sequence[int]) -> Callable[[list], Sequence[Any]]:
    """What takes these elements from a list."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    start = indices[0] if indices else 0
    return operator.itemgetter(slice(start, start + len(indices)))


class Snapshot:
    """Tensors as they are now, each with its number in a list of arguments.  They are kept, so that no other can look
    like them.  counted: numbers of those whose changes in place matter; of others PyTorch's count is not looked at, nor
    of those that have none."""

    def __init__(self, numbers: Sequence[int], tensors: Sequence[torch.Tensor], counted: Collection[int]) -> None:
        has_count = [i in counted and not t.is_inference() for i, t in zip(numbers, tensors)]
        order = sorted(range(len(numbers)), key=lambda at: not has_count[at])  # the counted ones first
        self.numbers, self.tensors = [numbers[at] for at in order], [tensors[at] for at in order]
        self.n, self.n_counted = len(order), sum(has_count)
        self.pick = pick(self.numbers)
        self.references = References(self.tensors, interface) if interface is not None else None
        self.look()

    def look(self) -> list[int]:
        """Note how the tensors are now.  Numbers of the counted ones that were changed since they were noted last."""
        before = getattr(self, "versions", ())
        self.addresses = list(map(address_of, self.tensors))
        self.versions = list(map(version_of, self.tensors[: self.n_counted]))
        if self.references is not None:
            self._make_record()
        return [i for i, a, b in zip(self.numbers, before, self.versions) if a != b]

    def _make_record(self) -> None:
        self.record = c.Watch(
            n=self.n,
            n_counted=self.n_counted,
            place=(ctypes.c_ssize_t * self.n)(*self.numbers),
            items=(ctypes.c_void_p * self.n)(*map(id, self.tensors)),
            records=self.references.records,
            addresses=(ctypes.c_void_p * self.n)(*self.addresses),
            versions=(ctypes.c_int64 * self.n_counted)(*self.versions),
            item=interface.item,
            where=interface.address,
            version=interface.version,
            follow=interface.follow,
            read=interface.read,
        )
        self.pointer = ctypes.byref(self.record)

    def has_same_tensors(self, arguments: Sequence[torch.Tensor]) -> bool:
        return all(map(operator.is_, self.pick(arguments), self.tensors))

    def holds(self, arguments: list[torch.Tensor]) -> bool:
        """Are the same tensors given, where they were, and the counted ones unchanged?"""
        if self.references is not None:
            return c.first_other(self.pointer, arguments) == self.n
        return (
            self.has_same_tensors(arguments)
            and list(map(address_of, self.tensors)) == self.addresses
            and list(map(version_of, self.tensors[: self.n_counted])) == self.versions
        )


class Statics:
    """The arguments of these numbers, which PyTorch says are the same in every call: parameters, buffers, and what is
    marked by torch._dynamo.mark_static_address.  Those of the last call are kept."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers, self.pick = list(numbers), pick(numbers)
        self.counted: frozenset[int] = frozenset()  # numbers of those whose changes in place matter
        self.held = Snapshot([], [], ())
        self.known = False  # is the program told of what is held?
        self.changed: set[int] = set()  # numbers of counted ones that were changed or are others; who asks clears it

    def are_as_before(self, arguments: list[torch.Tensor]) -> bool:
        """Is all that matters as it was?  If not, they are to be held."""
        self.known = self.known and self.held.holds(arguments)
        return self.known

    def hold(self, arguments: Sequence[torch.Tensor]) -> None:
        """From now on these are the tensors, as they are now."""
        before, tensors = self.held, self.pick(arguments)
        if before.n == len(tensors) and before.has_same_tensors(arguments):
            self.changed.update(before.look())
        else:
            old = {i: (t, v) for i, t, v in zip(before.numbers, before.tensors, before.versions)}
            now = self.held = Snapshot(self.numbers, tensors, self.counted)
            for i, t, v in zip(now.numbers, now.tensors, now.versions):
                was, count = old.get(i, (None, 0))
                if was is not t or count != v:
                    self.changed.add(i)
        self.known = True

    def watch(self, counted: Collection[int]) -> None:
        """From now on it matters whether these are changed in place."""
        self.counted = frozenset(counted)
        self.held = Snapshot(self.held.numbers, self.held.tensors, self.counted)


# ---- tensors made of tensors ----


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a tensor is made of, as DTensor is of a local one."""
    if not torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return [tensor]
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [part for one in inner if isinstance(one, torch.Tensor) for part in parts_of(one)]


def count_changes_of_parts(function: Callable, numbers: Sequence[int]) -> Callable:
    """The function, before which changes in place of these arguments count as changes of their parts: PyTorch counts
    them of the whole only, and programs see the parts only."""
    if not numbers:
        return function
    seen: dict[int, int] = {}

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        for i in numbers:
            whole = arguments[i]
            count = 0 if whole.is_inference() else whole._version
            if seen.setdefault(i, count) != count:
                seen[i] = count
                for part in parts_of(whole):
                    if not part.is_inference():
                        torch.autograd.graph.increment_version(part)
        return function(*arguments)

    return call
