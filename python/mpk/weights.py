"""Noticing at little cost that a program's weights are others than in its last call, lie elsewhere or were changed.

A model has hundreds, and to ask each from Python takes longer than a launch.  So the tensors are compared as objects,
and their addresses and versions are read in one call of the library each, through PyTorch's C interface.
"""

from __future__ import annotations

import ctypes
import operator
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpk import _library as c

address_of = torch.Tensor.data_ptr
version_of = operator.attrgetter("_version")


class Interface:
    """What this PyTorch offers to C; tensors are taken by reference (at::Tensor *).

    The count of changes has a C++ name only, that of `int64_t at::TensorBase::_version() const`.  It throws for one
    that has no count, which nobody may catch here; a tensor that has one keeps it, so those without are left out.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        self.address = ctypes.cast(library.aoti_torch_get_data_ptr, ctypes.c_void_p)
        self.version = ctypes.cast(library["_ZNK2at10TensorBase8_versionEv"], ctypes.c_void_p)
        self.delete = library.aoti_torch_delete_tensor_object
        self.delete.argtypes = [ctypes.c_void_p]
        self.refer = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        self.pointer = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))


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


def _are_same(those: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
    return all(map(operator.is_, those, tensors))


def _are_same_and_large(those: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Of tensors with two and more elements: Python compares no object with itself, and a comparison with another is
    either false or, having no one truth value, an error."""
    try:
        return those == tensors
    except RuntimeError:
        return False


class References:
    """References to tensors for C.  They keep the tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors, self.n, self.delete = tensors, len(tensors), interface.delete
        capsules = interface.refer(list(tensors))
        self.array = (ctypes.c_void_p * self.n)(*(interface.pointer(capsule, None) for capsule in capsules))

    def __del__(self) -> None:
        for reference in getattr(self, "array", ()):
            self.delete(reference)


class Weights:
    """The arguments of these numbers.  Those of the last call are kept, so that no other tensor can look like them."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers, self.pick = list(numbers), pick(numbers)
        self.known = False  # do the fields below tell what the program was last told?
        self.tensors: Sequence[torch.Tensor] = ()
        self.same: Callable = _are_same
        self.addresses = (ctypes.c_uint64 * 0)()
        self.references: References | None = None
        self.matter: set[int] = set()  # numbers of those whose changes in place matter
        self.watched: list[int] = []  # of them, those of which PyTorch counts changes
        self.versions = (ctypes.c_int64 * 0)()
        self.watched_references: References | None = None

    def are_as_before(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Are the same tensors given, and do they lie where they did?  If not, they are to be held."""
        held = self.references
        if self.known and self.same(self.pick(arguments), self.tensors):
            if held is not None:
                self.known = c.lib.mpk_first_moved(held.n, held.array, self.addresses, interface.address) == held.n
            else:
                self.known = list(map(address_of, self.tensors)) == list(self.addresses)
        else:
            self.known = False
        return self.known

    def hold(self, arguments: Sequence[torch.Tensor]) -> None:
        """From now on these are the tensors, where they lie now."""
        before = {i: (t, v) for i, t, v in zip(self.watched, self._watched_tensors(), self.versions)}
        self.tensors = self.pick(arguments)
        self.same = _are_same_and_large if all(t.numel() > 1 for t in self.tensors) else _are_same
        self.addresses = (ctypes.c_uint64 * len(self.tensors))(*map(address_of, self.tensors))
        self.references = References(self.tensors) if interface is not None else None
        self._watch(before)
        self.known = True

    def watch(self, numbers: Sequence[int]) -> None:
        """From now on it matters whether these are changed in place."""
        self.matter = set(numbers)
        self._watch({i: (t, version_of(t)) for i, t in zip(self.numbers, self.tensors) if not t.is_inference()})

    def changed(self) -> list[int]:
        """Numbers of those that PyTorch has changed in place since the last call of this, or that are other tensors."""
        held = self.watched_references
        if not self.watched:
            return []
        if held is not None:
            if c.lib.mpk_first_changed(held.n, held.array, self.versions, interface.version) == held.n:
                return []
        now = list(map(version_of, self._watched_tensors()))
        which = [i for i, a, b in zip(self.watched, now, self.versions) if a != b]
        self.versions[:] = now
        return which

    def _watched_tensors(self) -> list[torch.Tensor]:
        place = {i: at for at, i in enumerate(self.numbers)}
        return [self.tensors[place[i]] for i in self.watched]

    def _watch(self, before: dict[int, tuple[torch.Tensor, int]]) -> None:
        """before: the tensors that were watched, with their versions; others count as changed."""
        held = {i: t for i, t in zip(self.numbers, self.tensors) if i in self.matter and not t.is_inference()}
        self.watched = list(held)
        old = {i: before.get(i, (None, 0)) for i in held}
        self.versions = (ctypes.c_int64 * len(held))(*(old[i][1] if old[i][0] is t else -1 for i, t in held.items()))
        self.watched_references = References(list(held.values())) if interface is not None else None
