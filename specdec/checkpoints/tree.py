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


def flatten(tree: PyTree) -> dict[str, Any]:
    """A nested dict as {name: leaf}."""
    return traverse_util.flatten_dict(tree, sep="/")


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
    causes = []
    v1_0, untied = _has(found, "mlp/wi/kernel"), _has(found, "logits_dense/kernel")
    if v1_0 != _has(expected, "mlp/wi/kernel"):
        version, activations = ("v1.0", ("relu",)) if v1_0 else ("v1.1", ("gelu", "linear"))
        causes.append(f"these are the parameters of a {version} T5 (mlp_activations={activations})")
    if untied != _has(expected, "logits_dense/kernel"):
        tie = "are not tied" if untied else "are tied"
        causes.append(f"logits {tie} to the embedding (logits_via_embedding={not untied})")
    for stack in ("encoder", "decoder"):
        layers = _depth(found, stack)
        if 0 < layers != _depth(expected, stack):
            causes.append(f"num_{stack}_layers={layers}")
    if any(found[name] != expected[name] for name in found.keys() & expected.keys()):
        causes.append("the config is for another model size or vocabulary")
    return "; ".join(causes) or "an incomplete or altered checkpoint"


def _has(names: Mapping[str, Shape], end: str) -> bool:
    return any(name.endswith(end) for name in names)


def _depth(names: Mapping[str, Shape], stack: str) -> int:
    return len({name.split("/")[1] for name in names if name.startswith(f"{stack}/layers_")})
