"""The base of configs of families that are not a T5."""

from __future__ import annotations

import jax.numpy as jnp

from specdec.common.values import Checked


class Architecture(Checked):
    """The checks that families share; a family adds the fields as a frozen dataclass."""

    vocab_size: int
    dtype: str
    logits_via_embedding: bool
    head_ids: tuple[int, ...] | None
    pad_id: int
    stop_ids: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        super().__post_init__()
        name = type(self).__name__
        if self.head_ids is not None and self.head_ids[-1] >= self.vocab_size:
            raise ValueError(
                f"{name}.head_ids goes up to {self.head_ids[-1]}; give ids below {self.vocab_size}"
            )
        if self.pad_id in self.stop_ids:
            raise ValueError(
                f"{name}.pad_id is {self.pad_id}, which is also one of stop_ids {self.stop_ids}; "
                f"give {self.pad_remedy}"
            )

    @property
    def pad_remedy(self) -> str:
        return "-1"

    @property
    def head_is_table(self) -> bool:
        """Whether the token table also projects to the logits."""
        return self.logits_via_embedding and self.head_ids is None
