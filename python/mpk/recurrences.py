"""torch._higher_order_ops.associative_scan: element-wise functions of a state and a step become the operator recur.

The function is a graph of its own, of two steps: left is the state so far, right the next one.  Its nodes are lowered
as all others are, by an emitter that writes expressions of the operator map in place of operators.  A state that needs
another as it was a step before reads it as an operand; states that nobody reads are not computed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch

from mpk.emit import DTYPES, Emitter, Unsupported, Val, dtype_name, table

TEXTS = {"add": "x0 + x1", "mul": "x0 * x1", "cast": "x0", "silu": "x0 / (1 + exp(-x0))"}
BY_NAME = {name: dtype for dtype, (_, name) in DTYPES.items()}
STATES = {torch.float32, torch.float16, torch.bfloat16}
WORD = re.compile(r"\b([a-z])(\d+)\b")


class Expressions(Emitter):
    """What the nodes of a graph compute as texts.  The `tensor` of a value is its word: the name of an operand, or tN,
    which statement N is the text of."""

    def __init__(self, device: torch.device) -> None:
        super().__init__("expressions", device)
        self.statements: list[str] = []

    def ops(self, kind: str, /, *operands: Val | None, **attributes: Any) -> list[Val]:
        text = attributes["expr"] if kind == "map" else TEXTS.get(kind)
        if text is None or None in operands:
            raise Unsupported(f"{kind} in the function of a scan")
        vals = [v for v in operands if v is not None]
        dtype = BY_NAME[attributes["dtype"]] if "dtype" in attributes else vals[0].dtype
        words = {f"x{i}": self.word(v) for i, v in enumerate(vals)}
        *before, value = text.split(";")
        for statement in before:
            name, _, of = statement.partition("=")
            words[name.strip()] = self.state(renamed(of, words))
        word = self.state(f"{dtype_name(dtype)}({renamed(value, words)})")
        return [Val(tuple(torch.broadcast_shapes(*(v.shape for v in vals))), dtype, word)]  # type: ignore[arg-type]

    def state(self, text: str) -> str:
        self.statements.append(text.strip())
        return f"t{len(self.statements) - 1}"

    def word(self, val: Val) -> str:
        word = val.tensor if val.tensor is not None else val.literal()
        if word is None:
            raise Unsupported("a constant tensor in the function of a scan")
        return str(word)


def renamed(text: str, words: dict[str, str]) -> str:
    return WORD.sub(lambda found: words.get(found[0], found[0]), text)


class Combine:
    """The function of a scan: the words of its results, of operands lN (the state so far), rN (the step), mN (more)."""

    def __init__(self, e: Emitter, gm: torch.fx.GraphModule, xs: Sequence[Val], more: Sequence[Val]) -> None:
        self.texts = Expressions(e.device)
        names = [f"{side}{i}" for side in "lr" for i in range(len(xs))] + [f"m{i}" for i in range(len(more))]
        kinds = [(x.shape[1:], x.dtype) for x in (*xs, *xs)] + [(m.shape, m.dtype) for m in more]
        values: dict[torch.fx.Node, Any] = {}
        words: Any = zip(names, kinds)  # in the place of tensors
        given = iter([Val(tuple(shape), dtype, name) for name, (shape, dtype) in words])
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "call_function":
                values[node] = self.texts.lower(node, values)
            elif node.op == "output":
                results = [values[r] for r in node.args[0]]
            else:
                raise Unsupported(f"{node.op} in the function of a scan")
        for result, (shape, dtype) in zip(results, kinds):
            if tuple(result.shape) != tuple(shape) or result.dtype != dtype:
                raise Unsupported("the function of a scan changes a shape or a dtype")
        self.results = [self.texts.word(r) for r in results]

    def read(self, i: int) -> list[str]:
        """The operands of result i, and the statements that lead to it, last to first."""
        found, todo = [], [self.results[i]]
        while todo:
            word = todo.pop(0)
            if word not in found:
                found.append(word)
                todo += [w[0] for w in WORD.finditer(self.texts.statements[int(word[1:])])] if word[0] == "t" else []
        return found

    def expression(self, i: int, operands: Sequence[str]) -> str:
        """The text of result i, whose operands are x0 and up in this order."""
        words = {word: f"x{k}" for k, word in enumerate(operands)}
        lines = sorted({int(word[1:]) for word in self.read(i) if word[0] == "t"})
        words |= {f"t{n}": f"t{k}" for k, n in enumerate(lines)}
        texts = [f"{words[f't{n}']} = {renamed(self.texts.statements[n], words)}" for n in lines]
        return "; ".join([*texts, renamed(self.results[i], words)])


def scan(e: Emitter, gm: torch.fx.GraphModule, xs: Sequence[Val], more: Sequence[Val]) -> list[Val | None]:
    """All states along axis 0 of those of xs that are read."""
    if any(x.dtype not in STATES for x in xs):
        raise Unsupported("a scan of other numbers than f32, f16 and bf16")
    combine, states, given = Combine(e, gm, xs, more), {}, {"r": xs, "m": more}

    def states_of(i: int, asked: tuple[int, ...] = ()) -> Val:
        if i in asked:
            raise Unsupported("states of a scan that need each other")
        if i not in states:
            words = sorted(word for word in combine.read(i) if word[0] in "lrm" and word not in (f"l{i}", f"r{i}"))
            others = []
            for word in words:
                at = int(word[1:])
                others.append(late(states_of(at, (*asked, i))) if word[0] == "l" else given[word[0]][at])
            text = combine.expression(i, [f"r{i}", *words, f"l{i}"])
            states[i] = e.op("recur", xs[i], *others, expr=text, dtype=dtype_name(xs[i].dtype), start="first")
        return states[i]

    def late(states: Val) -> Val:
        """Those of one step before; of the first step, which has none before, any."""
        first, rest = e.slice(states, 0, 0, 1), e.slice(states, 0, 0, states.shape[0] - 1)
        return e.concat([first, rest], 0)

    wanted = {user.args[1] for user in e.node.users if user.target is operator.getitem}
    return [states_of(i) if i in wanted else None for i in range(len(xs))]


table[torch.ops.higher_order.associative_scan] = scan
