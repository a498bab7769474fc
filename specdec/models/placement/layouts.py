"""Layouts: a checkpoint's parameters rewritten as a device reads the decoder fastest, and back.

A decoder step reads each of its kernels once. Its speed depends on which of a kernel's axes is
contiguous, and which of the operands comes first; see `specdec.models.layers.products`.

  storage       of a decoder step    of prefill    logits of a tied model
  "checkpoint"  [in, out]            [in, out]     from the table of tokens [V, D]
  "in_out"      [in, out]            [in, out]     from a second array, its transpose [D, V]
  "out_in"      [out, in]            [in, out]     from the table of tokens [V, D]
  "all_out_in"  [out, in]            [out, in]     from the table of tokens [V, D]
  "unsigned"    [out, in] + 128      [out, in]     tokens in eight bits only

"unsigned" has whole numbers from 1 to 255 in a step, see `products.unsigned`.

"checkpoint" is the tree of checkpoints: T5X's for a T5, and the same names in other families.
A tied model with tokens in eight bits has a second table in every layout, see `models.layers.int8`.
Kernels of prefill are those of an encoder, and of cross-attention's keys and values, which process
many tokens in one call. Joining query, key and value, or the gates of an MLP, makes no difference
on a CPU. On a TPU, by its compiler's estimate, it halves a small draft model's step; see `joined`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import jax.numpy as jnp
from flax import traverse_util

from specdec.common.values import Checked, PositiveInt
from specdec.models.layers import int8
from specdec.models.layers.int8 import Rounding
from specdec.models.layers.products import Fused, Kernels, Order, Orders, shifted
from specdec.models.placement.device import Device
from specdec.types import PyTree

Storage: TypeAlias = Literal["checkpoint", "in_out", "out_in", "all_out_in", "unsigned"]
Path: TypeAlias = tuple[str, ...]

OUT_IN: tuple[Order, ...] = ("out_in", "kernel_first")  # of kernels that are kept so
ALL_TRANSPOSED = ("all_out_in", "unsigned")
TRANSPOSED = ("out_in", *ALL_TRANSPOSED)
PREFILL = 64  # tokens, an example
CALLS = 32  # of a text after its prefill, an example
# A call on one token is computed with two where that takes at most this share of its time: products
# are not all of a step, and measurements scatter.
FASTER = 0.95
_OF_PREFILL: Order = "kernel_first"  # of kernels [out, in], unless both operands have eight bits
_IN_PREFILL = {
    ("encoder_decoder_attention", name, leaf)
    for name in ("key", "value")
    for leaf in ("kernel", "bias", int8.SCALE)
}


class Tied(Protocol):
    """A config that says whether the token table also projects to the logits."""

    @property
    def head_is_table(self) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Layout(Checked):
    """The storage of a model's parameters, and the way in which its calls are computed.

    In all layouts the model is the same, and logits are equal up to the order of summation.

    Args:
      storage: how the decoder's kernels are stored; "checkpoint" for unchanged.
      orders: how products with the kernels are computed, see `models.layers.products.Kernels`.
      widened: whether kernels in eight bits are stored in the model's dtype, where a device
        multiplies that faster.
      least_width: the fewest tokens that a call of `decode` is computed with. Some devices multiply
        a single row more slowly than two rows, and with other rounding.
      joined: whether kernels of the same input are one, see `layouts.joined`.
      fused: the backend of our Pallas kernels for calls at batch 1 on one or two tokens: "triton"
        on a GPU, "mosaic" on a TPU, None for XLA alone. They suit the steps of a draft, and round
        differently.
      in_order: whether the bits of a token's attention must not depend on masked slots between its
        visible slots in the cache.
    """

    storage: Storage = "checkpoint"
    orders: Orders = ()
    widened: bool = False
    least_width: PositiveInt = 1
    joined: bool = False
    fused: Fused | None = None
    in_order: bool = False

    def __str__(self) -> str:
        """Describes the layout in words: 'out_in, kernel_first at 1 and 8 tokens'."""
        by_order: dict[str, list[str]] = {}
        for tokens, order in self.orders:
            by_order.setdefault(order, []).append(str(tokens))
        words = [self.storage, *(f"{o} at {' and '.join(n)} tokens" for o, n in by_order.items())]
        if self.widened:
            words.append("int8 kept in float, which is faster here")
        if self.least_width > 1:
            words.append(f"calls on {self.least_width} tokens or more")
        if self.joined:
            words.append("joined kernels")
        if self.fused:
            words.append("fused kernels for calls on one row")
        return ", ".join(words)

    @property
    def of_parameters(self) -> Layout:
        """The layout with default values of the fields that change calls but not parameters."""
        return Layout(self.storage, widened=self.widened, joined=self.joined)

    def kernels(self, weights: Rounding) -> tuple[Kernels, Kernels]:
        """Returns the settings of the kernels of a decoder step, and of those of prefill."""
        int8_tokens = weights == "int8_tokens"
        step, prefill = Kernels(self.storage in TRANSPOSED, self.orders), Kernels()
        if self.storage == "unsigned":
            step, prefill = Kernels(True, others="unsigned"), Kernels(True, others="unsigned_many")
        elif self.storage == "all_out_in":
            narrow = int8_tokens and not self.widened
            prefill = Kernels(True, others="out_in" if narrow else _OF_PREFILL)
        rounded = {"int8": weights != "stored", "int8_tokens": int8_tokens}
        step, prefill = (
            dataclasses.replace(kernels, **rounded, widened=self.widened)
            for kernels in (step, prefill)
        )
        return dataclasses.replace(step, joined=self.joined, in_order=self.in_order), prefill


STORED = Layout()  # as checkpoints have it


def fastest(
    kernels: Mapping[int, int],
    calls: Mapping[int, float],
    device: Device,
    int8_tokens: bool = False,
) -> Layout:
    """Returns the layout in which calls are fastest on a device.

    Args:
      kernels: the number of the kernels that a call reads, by their bytes in float32.
      calls: tokens of a call, over all rows -> how often there is such a call.
      device: the measured times of products.
      int8_tokens: whether tokens are rounded to eight bits.
    """
    if not calls or min(calls) < 1:
        raise ValueError(
            f"calls is {dict(calls)}; give {{tokens of a call, at least 1: number of calls}}"
        )
    seconds, fastest_layout = _fastest(kernels, calls, device, _OF_PREFILL)
    if not int8_tokens:
        in_pairs = _fastest(kernels, without_single(calls), device, _OF_PREFILL)
        if in_pairs[0] < FASTER * seconds:
            return dataclasses.replace(in_pairs[1], least_width=2)
        return fastest_layout
    if (in_int8 := device.in_int8()) is not None:
        narrow_seconds, narrow = _fastest(kernels, calls, in_int8, "out_in")
        if in_int8.measured("unsigned"):
            unsigned_seconds = _seconds(kernels, calls, in_int8, ["unsigned"])
            of_texts = {PREFILL: sum(calls.values()) / CALLS}
            saved = _seconds(kernels, of_texts, in_int8, ["in_out", "out_in"])
            saved -= _seconds(kernels, of_texts, in_int8, ["unsigned"])
            if unsigned_seconds <= narrow_seconds + saved:
                narrow_seconds, narrow = unsigned_seconds, Layout("unsigned")
        if narrow_seconds <= seconds:
            return narrow
    return dataclasses.replace(fastest_layout, widened=True)


def _seconds(
    kernels: Mapping[int, int],
    calls: Mapping[int, float],
    device: Device,
    orders: Sequence[Order],
) -> float:
    """Returns the seconds of calls, each in the fastest of some orders."""
    return sum(n * device.fastest(kernels, x, orders)[0] for x, n in calls.items())


def without_single(calls: Mapping[int, float]) -> dict[int, float]:
    """Returns the number of calls by tokens, where calls on one token count as calls on two."""
    wider: dict[int, float] = {}
    for tokens, count in calls.items():
        wider[max(tokens, 2)] = wider.get(max(tokens, 2), 0.0) + count
    return wider


def _fastest(
    kernels: Mapping[int, int], calls: Mapping[int, float], device: Device, of_prefill: Order
) -> tuple[float, Layout]:
    in_out = _seconds(kernels, calls, device, ["in_out"])
    others = {tokens: device.fastest(kernels, tokens, OUT_IN) for tokens in calls}
    out_in = sum(n * others[tokens][0] for tokens, n in calls.items())
    if in_out < out_in:
        return in_out, Layout("in_out")
    prefill = device.fastest(kernels, PREFILL, ["in_out", of_prefill])[1]
    chosen: Orders = tuple((tokens, order) for tokens, (_, order) in sorted(others.items()))
    orders: Orders = tuple(pair for pair in chosen if pair[1] != "out_in")
    return out_in, Layout("out_in" if prefill == "in_out" else "all_out_in", orders)


def from_stored(params: PyTree, config: Tied, layout: Layout, int8_tokens: bool = False) -> PyTree:
    """Returns a checkpoint's tree in a layout.

    Arrays that keep their shape are shared, not copied. A transposed array keeps its division over
    the devices. Both trees are in memory until the caller drops the checkpoint's.
    """
    if config.head_is_table and not logits_from_table(config, layout, int8_tokens):
        # The table of tokens is kept a second time, for the logits.
        head = {"kernel": jnp.swapaxes(params["token_embedder"]["embedding"], 0, 1)}
        params = params | {"decoder": params["decoder"] | {"logits_dense": head}}
    return _transposed(params, layout)


def to_stored(params: PyTree, config: Tied, layout: Layout) -> PyTree:
    """Returns a checkpoint's tree from one in a layout: the inverse of `from_stored`, exactly."""
    if config.head_is_table:
        decoder = {name: leaf for name, leaf in params["decoder"].items() if name != "logits_dense"}
        params = params | {"decoder": decoder}
    return _transposed(params, layout)


def logits_from_table(config: Tied, layout: Layout, int8_tokens: bool) -> bool:
    """Returns whether the token table itself projects to the logits.

    Its rows stay float, so logits in eight bits need a second table.
    """
    return config.head_is_table and layout.storage != "in_out" and not int8_tokens


Module: TypeAlias = Mapping[str, PyTree]  # the parameters of a layer or of its part


def _stacks(params: PyTree) -> list[str]:
    """Returns which of "encoder" and "decoder" a model's parameters have."""
    return [part for part in ("encoder", "decoder") if part in params]


def read_in_step(decoder: Mapping[Path, PyTree]) -> dict[Path, PyTree]:
    """Returns the parameters of a flattened decoder that a step reads.

    The keys and values of the inputs are in the cache, so a step does not need the kernels that
    made them.
    """
    return {path: leaf for path, leaf in decoder.items() if path[-3:] not in _IN_PREFILL}


def out_in(params: PyTree, layout: Layout) -> set[Path]:
    """Returns the paths of the kernels that are [out, in] in a layout, and [in, out] in files."""
    if layout.storage not in TRANSPOSED:
        return set()
    transposed, prefill = set(), layout.storage in ALL_TRANSPOSED
    for part in _stacks(params) if prefill else ("decoder",):
        leaves: dict[Path, PyTree] = dict(traverse_util.flatten_dict(params[part]))
        paths = leaves if prefill else read_in_step(leaves)
        transposed |= {(part, *path) for path in paths if path[-1] == "kernel"}
    return transposed


def _transposed(params: PyTree, layout: Layout) -> PyTree:
    """Transposes the kernels that are [out, in] in a layout; a second call undoes the first."""
    if not (paths := out_in(params, layout)):
        return params
    leaves: dict[Path, PyTree] = dict(traverse_util.flatten_dict(params))
    leaves |= {path: jnp.swapaxes(leaves[path], 0, 1) for path in paths}
    return traverse_util.unflatten_dict(leaves)


_PROJECTIONS, _PROJECTED = ("query", "key", "value"), "query_key_value"


def joined(params: PyTree) -> PyTree:
    """Returns a T5's parameters with one kernel [in, out] where several have the same input.

    Joined are query, key and value of the decoder's self-attention, and the gates of an MLP. A
    small product takes an accelerator about as long as a larger one.
    """

    def join(module: Module, parts: Sequence[str], joined_name: str) -> Module:
        if not parts:  # an MLP without a gate
            return dict(module)
        kernels = [module[part]["kernel"] for part in parts]
        others = {name: leaf for name, leaf in module.items() if name not in parts}
        return {**others, joined_name: {"kernel": jnp.concatenate(kernels, axis=1)}}

    def change(layer: Module) -> Module:
        attention, mlp = layer["self_attention"], layer["mlp"]
        gates = sorted(name for name in mlp if name.startswith("wi_"))
        attention = join(attention, _PROJECTIONS, _PROJECTED)
        return {**layer, "self_attention": attention, "mlp": join(mlp, gates, "wi")}

    return _in_layers(params, change)


def apart(params: PyTree) -> PyTree:
    """Returns the parameters with joined kernels split: the inverse of `joined`, bit for bit."""

    def split(module: Module, parts: Sequence[str], joined_name: str) -> Module:
        kernels = jnp.split(module[joined_name]["kernel"], len(parts), axis=1)
        others = {name: leaf for name, leaf in module.items() if name != joined_name}
        pairs = zip(parts, kernels, strict=True)
        return {**others, **{part: {"kernel": kernel} for part, kernel in pairs}}

    def change(layer: Module) -> Module:
        attention, mlp = layer["self_attention"], layer["mlp"]
        count = mlp["wi"]["kernel"].shape[1] // mlp["wo"]["kernel"].shape[0]
        if count > 1:
            mlp = split(mlp, [f"wi_{i}" for i in range(count)], "wi")
        return {
            **layer,
            "self_attention": split(attention, _PROJECTIONS, _PROJECTED),
            "mlp": mlp,
        }

    return _in_layers(params, change)


def _in_layers(params: PyTree, change: Callable[[Module], Module]) -> PyTree:
    """Returns the parameters with `change` applied to each layer of the decoder."""
    decoder = params["decoder"].items()
    layers = {name: change(leaf) for name, leaf in decoder if name.startswith("layers_")}
    return {**params, "decoder": {**params["decoder"], **layers}}


def of_logits(kernels: Kernels) -> Kernels:
    """Returns the settings of the logits' kernel from those of a decoder step's kernels.

    The logits' kernel has eight bits only if tokens have eight bits, too.
    """
    return kernels if kernels.int8_tokens else dataclasses.replace(kernels, int8=False)


def quantized(
    params: PyTree, layout: Layout, int8_tokens: bool = False, dtype: str = "int8"
) -> PyTree:
    """Returns the parameters of a layout with kernels in eight bits."""
    changed = dict(params)
    for part in _stacks(params):
        leaves: dict[Path, PyTree] = dict(traverse_util.flatten_dict(params[part]))
        for path in [path for path in leaves if path[-1] == "kernel"]:
            if path[-2] == "logits_dense" and not int8_tokens:
                continue
            inputs = _inputs(part, path, layout)
            layer = int8.quantized(leaves.pop(path), inputs=inputs)
            leaves |= {(*path[:-1], name): leaf for name, leaf in layer.items()}
            levels, in_step = leaves[path], not _in_prefill(part, path)
            unsigned = layout.storage == "unsigned" and in_step
            leaves[path] = shifted(levels) if unsigned else levels.astype(dtype)
        changed[part] = traverse_util.unflatten_dict(leaves)
    return changed


def dequantized(params: PyTree, layout: Layout) -> PyTree:
    """Returns the parameters with each int8 kernel replaced by its float32 product with scales."""
    changed = dict(params)
    for part in _stacks(params):
        leaves = dict(traverse_util.flatten_dict(params[part]))
        for *module, _ in [path for path in leaves if path[-1] == int8.SCALE]:
            path = (*module, "kernel")
            layer = {"kernel": leaves[path], int8.SCALE: leaves.pop((*module, int8.SCALE))}
            leaves[path] = int8.dequantized(layer, inputs=_inputs(part, path, layout))
        changed[part] = traverse_util.unflatten_dict(leaves)
    return changed


def _inputs(part: str, path: Path, layout: Layout) -> int:
    """Returns the axis of a kernel's inputs."""
    return int(layout.storage in (ALL_TRANSPOSED if _in_prefill(part, path) else TRANSPOSED))


def _in_prefill(part: str, path: Path) -> bool:
    return part == "encoder" or path[-3:] in _IN_PREFILL
