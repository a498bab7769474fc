"""The same draft length in every call."""

from __future__ import annotations

import dataclasses

from specdec.common.values import Checked, PositiveInt, check
from specdec.schedules.schedule import Buckets, Schedule, shortened


@dataclasses.dataclass(frozen=True)
class Fixed(Checked, Schedule):
    """Drafts gamma tokens in every call (Leviathan et al. 2022, section 2.3).

    Args:
      gamma: tokens of a draft.
      stop_at_end: whether drafting ends once each row has drafted a stop id. Otherwise a draft is
        always a loop of gamma steps.
      shorter: further buckets, ascending, for drafts that end with the text, or because a drafter
        has no more to copy. The target's call is then narrower; a bucket of 0 is for no draft at
        all. Drafting also ends as with `stop_at_end`.

    Example:

    >>> Fixed(gamma=5).buckets, Fixed(gamma=5, shorter=(0, 2)).buckets
    ((5,), (0, 2, 5))
    """

    gamma: PositiveInt
    stop_at_end: bool = dataclasses.field(default=False, kw_only=True)
    shorter: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        check("Fixed.buckets", self.buckets, Buckets)

    def __repr__(self) -> str:
        fields = [f"gamma={self.gamma}"]
        fields += ["stop_at_end=True"] if self.stop_at_end else []
        fields += [f"shorter={self.shorter}"] if self.shorter else []
        return f"Fixed({', '.join(fields)})"

    @property
    def buckets(self) -> tuple[int, ...]:
        return (*self.shorter, self.gamma)

    @property
    def lengths_vary(self) -> bool:
        return self.stop_at_end or super().lengths_vary

    def up_to(self, longest: int) -> Fixed:
        *shorter, gamma = shortened(self.buckets, longest)
        return dataclasses.replace(self, gamma=gamma, shorter=tuple(shorter))
