"""Growth of heads that look ahead, together with the target whose states they read.

States of a grown target are s R x instead of x, with the R of `models.t5.growth`. The factor s
arises if the target's table is tied. A head becomes

  s R x + wo' relu(wi' s R x)    with wi' = (D/D') R wi and wo' = wo R^T

which is s R (x + wo relu(wi x)) for any s, because relu(s y) = s relu(y). Added hidden units are
twins that cancel.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from specdec.models.growing import Difference, Growth, Stream, alike, key_of_streams, opposed
from specdec.models.heads import Heads, HeadsConfig
from specdec.types import Array, PyTree


class HeadsGrowth(Growth[HeadsConfig]):
    """The growth of heads, together with the target whose states they read."""

    growing: ClassVar[tuple[str, ...]] = ("states_dim", "mlp_dim")

    def resized(self, config: HeadsConfig, to: Any) -> HeadsConfig:
        """Returns the config for a target of the config `to`; heads get the size of its MLPs."""
        return dataclasses.replace(config, states_dim=to.emb_dim, mlp_dim=to.mlp_dim)

    def check_growth(self, config: HeadsConfig, to: HeadsConfig) -> None:
        super().check_growth(config, to)
        if config.activation != "relu":
            raise ValueError(
                f"HeadsConfig.activation is {config.activation!r}, and states of a grown target "
                "may be larger by a factor, which only 'relu' passes on; train heads with that"
            )

    def grow(self, params: PyTree, config: HeadsConfig, to: HeadsConfig, key: Array) -> PyTree:
        self.check_growth(config, to)
        stream = _stream(config, to, key)
        fresh = Heads(to).init(jax.random.split(key, 3)[1])
        units = slice(config.mlp_dim)

        def with_old(name: str, old: Array, axis: int) -> Array:
            """Returns [heads, .., ..] with the old units first, followed by pairs of twins."""
            kept = (slice(None),) * axis + (units,)
            new = fresh[name].at[kept].set(jnp.float32(old).astype(fresh[name].dtype))
            return (alike if name == "wi" else opposed)(new, config.mlp_dim, axis)

        by_head = jax.vmap(lambda wi: stream.widen(wi, 0))
        wi = with_old("wi", by_head(params["wi"]), 2)
        wo = with_old("wo", stream.widen(params["wo"], 2), 1)
        dtype = params["wi"].dtype
        return {"wi": wi.astype(dtype), "wo": wo.astype(dtype)}

    def logit_difference(
        self,
        params: PyTree,
        config: HeadsConfig,
        others: PyTree,
        other: HeadsConfig,
        key: Array,
        *,
        grown_by: Array,
    ) -> Difference:
        """Compares the heads' outputs for random states [4, 32, D] with those of grown heads."""
        states = jax.random.normal(key, (4, 32, config.states_dim))
        stream = _stream(config, other, grown_by)
        first = stream.of(Heads(config).ahead(params, states))
        return Difference.between(first, Heads(other).ahead(others, stream.of(states)), "states")


def _stream(config: HeadsConfig, to: HeadsConfig, key: Array) -> Stream:
    return Stream.create(key_of_streams(key), config.states_dim, to.states_dim)
