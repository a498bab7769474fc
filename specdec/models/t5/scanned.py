"""T5X's `scalable_t5`, whose parameters have other names and shapes than those of `t5`.

Layers that were trained in a scan are one array for a whole stack. `decoder/decoder/mlp/wo/kernel
[mlp, layers, embed]` holds all `decoder/layers_<i>/mlp/wo/kernel`. The axis of layers is 1, or 0 if
the training set `param_scan_axis` so. Attention kernels, scanned or not, are [embed, heads,
head_dim] (`out`: [heads, head_dim, embed]) instead of [embed, heads * head_dim].
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from specdec.common.values import integers
from specdec.models.contract.family import Shape, Shapes, Stack
from specdec.models.t5.config import T5Config

_RELATIVE_BIAS = "relpos_bias/rel_embedding"


def stacks(
    shapes: Shapes, config: T5Config | None, repeats: Callable[[str, int], bool]
) -> dict[str, Stack]:
    """Returns the parameters in each array: the one of its name, or one per layer of a stack.

    Every scanned layer has its own relative-position biases. If they are all equal, they are also
    the one that T5's layers share, and are read as such unless the config says otherwise.
    """
    per_layer = config is not None and config.relative_bias_per_layer
    axis = _axis(shapes)

    def stack(name: str, shape: Shape) -> Stack:
        match = re.fullmatch(r"(encoder|decoder)/\1/(.+)", name)
        if match is None or len(shape) <= axis:
            return Stack((name,), _joined(name, shape))
        integers(1, 1000).check(f"the number of layers in {name}", shape[axis])
        side, parameter = match.groups()
        layer_shape = _joined(name, shape[:axis] + shape[axis + 1 :])
        if parameter == _RELATIVE_BIAS and not per_layer and repeats(name, axis):
            return Stack((f"{side}/{_RELATIVE_BIAS}",), layer_shape, axis)
        layers = (f"{side}/layers_{i}/{parameter}" for i in range(shape[axis]))
        return Stack(tuple(layers), layer_shape, axis)

    return {name: stack(name, shape) for name, shape in shapes.items()}


def _axis(shapes: Shapes) -> int:
    """Returns the axis of layers in a layer norm of shape [embed, layers] or [layers, embed]."""
    norm = shapes.get("decoder/decoder/pre_mlp_layer_norm/scale")
    embedding = shapes.get("token_embedder/embedding")
    if norm is None or embedding is None:
        return 1
    return 1 if norm[:1] == embedding[1:] else 0


def _joined(name: str, shape: Shape) -> Shape:
    """Returns the shape with heads and head_dim joined."""
    if len(shape) != 3:
        return shape
    return (math.prod(shape[:2]), shape[2]) if "/out/" in name else (shape[0], math.prod(shape[1:]))
