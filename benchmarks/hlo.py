"""What a compiled program does, read from its optimized HLO text.

The TPU compiler writes its estimate of the cycles of most instructions next to them. The others are
classified here: custom kernels, which may state their own cost; collectives; asynchronous copies;
and the few remaining instructions, such as gathers. The body of a loop counts as often as it runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pe_jax.common.files import Json

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# Instructions that take no time.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
    "recv",  # What the `send` of another slice's chip moves.
}
_PRODUCTS = {"convolution", "dot"}  # On TPUs the first stands for both.
_KERNEL = "tpu_custom_call"  # A Pallas kernel; the compiler's other custom calls are bookkeeping.


class Instruction(NamedTuple):
    """One line: `name = shape opcode(arguments), attributes`."""

    name: str
    shape: str
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def called(self, attribute: str) -> str:
        """The computation that an attribute such as `body` names."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        if not found:
            raise ValueError(f"The HLO instruction {self.name} names no {attribute}.")
        return found[1]


class Module(NamedTuple):
    """A program: its computations, each a dict of instructions by name in their order."""

    entry: str
    computations: dict[str, dict[str, Instruction]]


class Work(NamedTuple):
    """Work of one device.

    Attributes:
      kind: what is known about it: `estimated` by the compiler, cycles; a custom `kernel`, FLOPs
        and bytes; `memory`, the bytes that it reads and writes; a `collective`, its payload (what
        is reduced, or the result of a gather); a `send` to another slice, its bytes; a `copy` that
        is asynchronous, its bytes.
      name: of the instruction; for a collective, its opcode.
      times: how often it runs.
      overlapped: whether it runs concurrently with the computation.
      chain: identifies a collective that runs in parts, each concurrently with another matmul; it
        counts once.
      group: how many devices a collective is between; 0 stands for all of a slice.
      scope: the path of JAX that it comes from, such as `jit(step)/jvp(Bert)/layer_0/mul`.
      product: whether it is, or is fused with, a product of matrices.
    """

    kind: Literal["estimated", "kernel", "memory", "collective", "send", "copy"]
    name: str
    times: int
    cycles: int = 0
    flops: int = 0
    bytes: int = 0
    overlapped: bool = False
    chain: str = ""
    group: int = 0
    scope: str = ""
    product: bool = False


class Reading(NamedTuple):
    """All work of a program.

    Attributes:
      unknown_loops: names of loops of unknown trip count, whose bodies are counted once.
    """

    work: list[Work]
    unknown_loops: list[str]


def parse(text: str) -> Module:
    """The module that `compiled.as_text()` prints."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            if found := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
                current = computations.setdefault(found[2], {})
                entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            current = None
        elif " = " in line:
            instruction = _instruction(line)
            current[instruction.name] = instruction
    if not entry:
        raise ValueError(
            "This is not the text of an HLO module: it has no ENTRY computation."
        )
    return Module(entry, computations)


def _instruction(line: str) -> Instruction:
    left, right = line.split(" = ", 1)
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    begin = rest.index("(")
    end = _closing(rest, begin)
    name = left.split()[-1].lstrip("%")
    return Instruction(
        name, shape, rest[:begin], rest[begin + 1 : end], rest[end + 1 :]
    )


def _closing(text: str, begin: int) -> int:
    """Where the parenthesis that opens at `begin` closes."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, begin):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    raise ValueError(f"A parenthesis does not close in the HLO line {text!r}.")


def shape_bytes(shape: str) -> int:
    """Bytes of an array or tuple shape such as `(f32[8,128]{1,0}, pred[])`, padding not counted."""
    total = 0
    for dtype, sizes in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", shape):
        width = re.search(
            r"\d+", dtype
        )  # f32, bf16, u8, f8e4m3fn; token and opaque have none.
        bits = 8 if dtype == "pred" else int(width[0]) if width else 0
        total += math.prod(int(n) for n in sizes.split(",") if n) * bits // 8
    return total


def read(text: str) -> Reading:
    """The work of one device in one run of the program, from `compiled.as_text()`."""
    module = parse(text)
    unknown: list[str] = []
    work, chains = [], set()
    for one in _walk(module, module.entry, 1, unknown):
        if one.chain not in chains:
            work.append(one)
        if one.chain:
            chains.add(one.chain)
    return Reading(work, unknown)


def _walk(
    module: Module, computation: str, times: int, unknown: list[str]
) -> Iterator[Work]:
    instructions = module.computations[computation]
    for one in instructions.values():
        if one.opcode == "while":
            trips = _trips(one, instructions, module)
            if trips is None:
                unknown.append(one.name)
            runs = times * (1 if trips is None else trips)
            yield from _walk(module, one.called("condition"), runs, unknown)
            yield from _walk(module, one.called("body"), runs, unknown)
        elif one.opcode == "conditional":
            branches = [list(_walk(module, b, times, unknown)) for b in _branches(one)]
            yield from max(
                branches, key=lambda work: sum(w.cycles * w.times for w in work)
            )
        elif one.opcode in ("call", "async-start"):
            called = one.called("to_apply" if one.opcode == "call" else "calls")
            yield from _walk(module, called, times, unknown)
        elif _base(one.opcode) in COLLECTIVES:
            if not one.opcode.endswith("-done"):
                yield _collective(one, instructions, times)
        elif one.opcode == "send":
            sent = _operand_bytes(one, instructions)
            yield Work("send", "send", times, bytes=sent)
        elif one.opcode == "fusion":
            inner = list(_inner_collectives(module, one.called("calls"), times))
            yield from inner
            yield from (
                _itself(one, instructions, times, module)
                if not inner or _cycles(one)
                else ()
            )
        else:
            yield from _itself(one, instructions, times, module)


def _itself(
    one: Instruction, among: dict[str, Instruction], times: int, module: Module
) -> Iterator[Work]:
    """The work of one instruction; nothing if it takes no time."""
    moved = shape_bytes(one.shape) + _operand_bytes(one, among)
    found = re.search(r'op_name="([^"]*)"', one.attributes)
    path = found[1] if found else ""
    if cycles := _cycles(one):
        product = _multiplies(one, module)
        yield Work(
            "estimated", one.name, times, cycles=cycles, scope=path, product=product
        )
    elif one.opcode == "custom-call":
        if f'custom_call_target="{_KERNEL}"' in one.attributes:
            stated = (
                _backend_config(one)
                .get("custom_call_config", {})
                .get("cost_estimate", {})
            )
            flops, bytes = (
                int(stated.get(key, 0)) for key in ("flops", "bytes_accessed")
            )
            bytes = bytes or moved
            yield Work("kernel", one.name, times, flops=flops, bytes=bytes, scope=path)
    elif one.opcode.endswith("-done"):
        yield Work(
            "copy", one.name, times, bytes=shape_bytes(one.shape), overlapped=True
        )
    elif one.opcode not in _FREE and not one.opcode.endswith("-start"):
        yield Work("memory", one.name, times, bytes=moved, scope=path)


def _multiplies(one: Instruction, module: Module) -> bool:
    """Whether an instruction is a product of matrices or has one within it."""
    if one.opcode == "fusion":
        inner = module.computations[one.called("calls")].values()
        return any(_multiplies(other, module) for other in inner)
    return one.opcode in _PRODUCTS


def _collective(
    one: Instruction, among: dict[str, Instruction], times: int, fusion: str = ""
) -> Work:
    """A collective, itself or (`fusion` names the computation) within a fusion."""
    given, made = _operand_bytes(one, among), shape_bytes(one.shape)
    if one.opcode.endswith("-start"):  # The shape of a gather includes its operands.
        made -= given
    # The TPU's reduce-scatter is a fusion of an all-reduce and the slice that a device keeps. A
    # collective in any other fusion is a part of one that overlaps with a matmul.
    scatter = fusion.startswith("all-reduce-scatter")
    chain = re.search(r'chain_id="(\w+)"', one.attributes)
    return Work(
        "collective",
        "reduce-scatter" if scatter else _base(one.opcode),
        times,
        bytes=max(given, made),
        overlapped=one.opcode.endswith("-start") or (bool(fusion) and not scatter),
        chain=chain[1] if chain else "",
        group=_group(one),
    )


def _group(one: Instruction) -> int:
    """How many devices a collective is between, 0 if it does not say.

    Three notations: lists of devices, `[groups, devices]<=[...]`, and axes of a mesh.
    """
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", one.attributes):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", one.attributes):
        return int(found[1])
    found = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", one.attributes)
    if not found:
        return 0
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
    return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", found[2]))


def _inner_collectives(module: Module, computation: str, times: int) -> Iterator[Work]:
    """The collectives within a fusion."""
    instructions = module.computations[computation]
    for one in instructions.values():
        if one.opcode in COLLECTIVES:
            yield _collective(one, instructions, times, fusion=computation)
        elif one.opcode == "fusion":
            yield from _inner_collectives(module, one.called("calls"), times)


def _base(opcode: str) -> str:
    return opcode.removesuffix("-start").removesuffix("-done")


def _cycles(one: Instruction) -> int:
    """The compiler's estimate, 0 if there is none."""
    found = re.search(r'"estimated_cycles":"(\d+)"', one.attributes)
    return int(found[1]) if found else 0


def _backend_config(one: Instruction) -> Json:
    begin = one.attributes.find("backend_config={")
    if begin < 0:
        return {}
    return json.JSONDecoder().raw_decode(
        one.attributes, begin + len("backend_config=")
    )[0]


def _operand_bytes(one: Instruction, among: dict[str, Instruction]) -> int:
    return sum(shape_bytes(among[name].shape) for name in one.operands if name in among)


def _branches(one: Instruction) -> list[str]:
    if found := re.search(r"branch_computations=\{([^}]*)\}", one.attributes):
        return re.findall(r"%?([\w.\-]+)", found[1])
    return [one.called(name) for name in ("true_computation", "false_computation")]


def _trips(
    loop: Instruction, among: dict[str, Instruction], module: Module
) -> int | None:
    """How often a loop runs: the compiler's annotation, or a counter compared with a constant."""
    if found := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return int(found[1])
    condition = module.computations[loop.called("condition")]
    test = list(condition.values())[-1]
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter, limit = (_source(name, condition) for name in test.operands)
    index = re.search(r"\bindex=(\d+)", counter.attributes)
    carried = among.get(loop.operands[0])
    if (
        limit.opcode != "constant"
        or index is None
        or carried is None
        or carried.opcode != "tuple"
    ):
        return None
    start = _source(carried.operands[int(index[1])], among)
    if start.opcode != "constant":
        return None
    return max(int(limit.arguments) - int(start.arguments), 0)


def _source(name: str, among: dict[str, Instruction]) -> Instruction:
    """The instruction that a value comes from, through copies."""
    one = among[name]
    while one.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        one = among[one.operands[0]]
    return one
