"""Parameter trees by name ('decoder/layers_0/mlp/wo/kernel'), and whether they fit a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import traverse_util

from specdec.checkpoints.errors import CheckpointError
from specdec.models.t5 import T5Config, T5Target
from specdec.types import PyTree

Shape = tuple[int, ...]

_RELATIVE_BIAS = "relpos_bias/rel_embedding"
_SIZE_FIELDS = (
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
)
_PRESETS = {  # the scopes of gin/models/ by their _SIZE_FIELDS; Flan-T5 and mT5 are t5_1_1
    (512, 8, 64, 2048, 6, 6): "t5_1_0_small",
    (768, 12, 64, 3072, 12, 12): "t5_1_0_base",
    (1024, 16, 64, 4096, 24, 24): "t5_1_0_large",
    (1024, 32, 128, 16384, 24, 24): "t5_1_0_3b",
    (1024, 128, 128, 65536, 24, 24): "t5_1_0_11b",
    (512, 6, 64, 1024, 8, 8): "t5_1_1_small",
    (768, 12, 64, 2048, 12, 12): "t5_1_1_base",
    (1024, 16, 64, 2816, 24, 24): "t5_1_1_large",
    (2048, 32, 64, 5120, 24, 24): "t5_1_1_xl",
    (4096, 64, 64, 10240, 24, 24): "t5_1_1_xxl",
    (1472, 6, 64, 3584, 12, 4): "byt5_small",
    (1536, 12, 64, 3968, 18, 6): "byt5_base",
    (1536, 16, 64, 3840, 36, 12): "byt5_large",
    (2560, 32, 64, 6720, 36, 12): "byt5_xl",
    (4672, 64, 64, 12352, 36, 12): "byt5_xxl",
}


def flatten(tree: PyTree) -> dict[str, Any]:
    """A nested dict as {name: leaf}, in alphabetical order: equal trees are written equally."""
    return dict(sorted(traverse_util.flatten_dict(tree, sep="/").items()))


def unflatten(leaves: Mapping[str, Any]) -> PyTree:
    """The inverse of `flatten`."""
    return traverse_util.unflatten_dict(leaves, sep="/")


def check(found: Mapping[str, Shape], config: T5Config, what: str) -> None:
    """Raises CheckpointError unless `found` has exactly the parameters of the model.

    Args:
      found: the shape of each parameter.
      config: the model they are for.
      what: whose shapes these are, for the error.
    """
    init = jax.eval_shape(T5Target(config).init, jax.random.key(0))
    expected = {name: leaf.shape for name, leaf in flatten(init).items()}
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    misshaped = [name for name in expected if name in found and found[name] != expected[name]]
    if not (missing or unexpected or misshaped):
        return
    complaints = [
        _list("missing", missing, lambda name: f"{name} {expected[name]}"),
        _list("unexpected", unexpected, lambda name: f"{name} {found[name]}"),
        _list("misshaped", misshaped, lambda name: f"{name} {found[name]}, not {expected[name]}"),
    ]
    raise CheckpointError(
        f"{what} does not fit the model: {'; '.join(filter(None, complaints))}. "
        f"Likely cause: {_cause(found, expected)}"
    )


def _list(kind: str, names: list[str], describe, limit: int = 3) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > limit else ""
    return f"{len(names)} {kind} ({', '.join(map(describe, names[:limit]))}{more})"


def _cause(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str:
    """What differs, in terms of T5Config's fields."""
    if not found.keys() & expected.keys():
        return "these are not the parameters of a T5"
    ours, theirs = _fields(expected), _fields(found)
    wrong = [name for name, value in theirs.items() if value not in (None, ours[name])]
    if not wrong:
        return "an incomplete or altered checkpoint"
    version = "v1.0" if len(theirs["mlp_activations"]) == 1 else "v1.1"
    preset = _PRESETS.get(tuple(theirs[name] for name in _SIZE_FIELDS))
    of_size = f" of size {preset}" if preset else ""
    fields = ", ".join(f"{name}={theirs[name]}, not {ours[name]}" for name in wrong)
    return f"these are the parameters of a {version} T5{of_size}: {fields}"


def _fields(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """The fields of T5Config that shapes tell; None where the array that tells it is missing."""
    unknown = (None, None)
    vocab_size, emb_dim = shapes.get("token_embedder/embedding", unknown)
    own, shared = f"decoder/layers_0/{_RELATIVE_BIAS}", f"decoder/{_RELATIVE_BIAS}"
    heads, buckets = shapes.get(own, shapes.get(shared, unknown))
    _, joined = shapes.get("decoder/layers_0/self_attention/query/kernel", unknown)
    gated = any(name.endswith("mlp/wi_0/kernel") for name in shapes)
    return {
        "mlp_activations": ("gelu", "linear") if gated else ("relu",),
        "logits_via_embedding": "decoder/logits_dense/kernel" not in shapes,
        "num_encoder_layers": _depth(shapes, "encoder"),
        "num_decoder_layers": _depth(shapes, "decoder"),
        "vocab_size": vocab_size,
        "emb_dim": emb_dim,
        "num_heads": heads,
        "head_dim": joined // heads if joined and heads else None,
        "mlp_dim": shapes.get("decoder/layers_0/mlp/wo/kernel", unknown)[0],
        "relative_attention_num_buckets": buckets,
        "relative_bias_per_layer": own in shapes,
    }


def _depth(names: Mapping[str, Shape], stack: str) -> int | None:
    layers = {name.split("/")[1] for name in names if name.startswith(f"{stack}/layers_")}
    return len(layers) or None
