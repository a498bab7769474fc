"""Trimming: a part of a model as a model of its own, from which a drafter is trained.

Kept parts do not change, and nothing replaces removed layers: each kept layer reads the stream of
the kept layer before it. If only last layers are kept, they read embeddings, on which they were not
trained. If only first layers are kept, the final norm and the head read an unfamiliar stream.

A head may keep only the ids that are likely at all (VocabTrim, Goel et al. 2025, 2506.22694;
FR-Spec, Zhao et al. 2025, 2502.14856). A step then reads D K numbers of it instead of D V. The
drafter gives the other ids probability 0, and only the target can produce them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from specdec.models.contract.model import Config
from specdec.models.sizes.kept_parts import Trim, check_head, head, of_layers, sizes
from specdec.types import PyTree


class _PartsConfig(Config, Protocol):
    """The config of a model that can be trimmed."""

    @property
    def num_encoder_layers(self) -> int: ...
    @property
    def num_decoder_layers(self) -> int: ...
    @property
    def head_is_table(self) -> bool: ...
    @property
    def encoded_dim(self) -> int | None: ...
    @property
    def head_ids(self) -> tuple[int, ...] | None: ...


def _same(config: _PartsConfig) -> _PartsConfig:
    return config


@dataclasses.dataclass(eq=False)
class PartsTrimming:
    """Trims models of one family; see `models.contract.family.Trimming`."""

    # the config's field with the width of the encoder's output; None for a family without encoders
    encoder_width: str | None = None
    # returns the config with the fields `encoded_dim` and `head_ids`
    with_additions: Callable[..., _PartsConfig] = _same
    # returns the config with these fields only if one of them is set
    without: Callable[..., Config] = _same

    @property
    def has_encoder(self) -> bool:
        return self.encoder_width is not None

    def trimmed(self, config: Config, trim: Trim) -> Config:
        """Returns the config of the kept parts."""
        full = self.with_additions(config)  # in which nothing may be set
        changes: dict[str, Any] = {}
        if trim.shared_encoder or trim.encoder_layers is not None:
            asked = "shared_encoder" if trim.shared_encoder else "encoder_layers"
            lacks = None if self.encoder_width else "has none"
            if self.encoder_width and full.encoded_dim:
                lacks = "reads another one's (encoded_dim)"
            if lacks:
                raise ValueError(
                    f"Trim.{asked} is about an encoder, and the model {lacks}; leave it out"
                )
        changes |= sizes(full, trim)
        if trim.shared_encoder and self.encoder_width:
            changes |= {"num_encoder_layers": 0, "encoded_dim": getattr(full, self.encoder_width)}
        if trim.head_ids is not None:
            check_head(full.head_ids, trim.head_ids)
            changes["head_ids"] = trim.head_ids
        return self.without(dataclasses.replace(full, **changes))

    def trim(self, params: PyTree, config: Config, trim: Trim) -> PyTree:
        """Returns the tree of the kept parameters; only those of an output head are copied."""
        self.trimmed(config, trim)
        trimmed, full = dict(params), self.with_additions(config)
        if trim.shared_encoder:
            del trimmed["encoder"]
        for stack in ("decoder", "encoder"):
            if (numbers := getattr(trim, f"{stack}_layers")) is not None:
                trimmed[stack] = of_layers(params[stack], numbers)
        if trim.head_ids is not None:
            part = head(params, full.head_is_table, full.head_ids, trim.head_ids)
            trimmed["decoder"] = trimmed["decoder"] | part
        return trimmed
