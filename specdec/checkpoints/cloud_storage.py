"""Paths in Google Cloud Storage, with those methods of `pathlib.Path` that reading needs.

TensorStore makes all requests. It also reads the arrays, so one set of credentials is enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specdec.checkpoints.errors import CheckpointError

if TYPE_CHECKING:
    import tensorstore as ts

T = TypeVar("T")

SCHEME = "gs://"
# With TensorStore's default of 32 retries, a misspelt bucket is reported only after minutes.
_RETRIES = {"gcs_request_retries": {"max_retries": 3, "initial_delay": "100ms", "max_delay": "1s"}}


@dataclasses.dataclass(frozen=True)
class BucketPath:
    """A path `gs://bucket/key`; TensorStore is imported when something is read."""

    bucket: str
    key: str  # without slashes at its ends; '' is the whole bucket

    @classmethod
    def parse(cls, url: str) -> BucketPath:
        """Returns the path of a gs:// address; raises CheckpointError if it names no bucket."""
        bucket, _, key = url.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise CheckpointError(f"{url!r} names no bucket; give gs://BUCKET/PATH")
        return cls(bucket, "/".join(part for part in key.split("/") if part))

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    __fspath__ = __str__

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> BucketPath:
        return BucketPath(self.bucket, self.key.rpartition("/")[0])

    def is_file(self) -> bool:
        return self.name in self.parent._keys(self.name, f"{self.name}\0")

    def iterdir(self) -> list[BucketPath]:
        """Returns the files and folders in this folder."""
        return [self / name for name in sorted({key.partition("/")[0] for key in self._keys()})]

    def read_bytes(self) -> bytes:
        answer = self.parent._ask(lambda store: store.read(self.name))
        if answer.state != "value":
            raise CheckpointError(f"{self} does not exist")
        return answer.value

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def kvstore(self) -> dict[str, str]:
        """Returns TensorStore's specification of the folder."""
        path = f"{self.key}/" if self.key else ""
        return {"driver": "gcs", "bucket": self.bucket, "path": path}

    def _keys(self, first: str = "", end: str = "") -> list[str]:
        """Returns the keys below the folder, relative to it, from `first` up to `end`."""
        import tensorstore as ts

        span = ts.KvStore.KeyRange(first, end)
        return [key.decode() for key in self._ask(lambda store: store.list(span))]

    def _ask(self, question: Callable[[ts.KvStore], ts.Future[T]]) -> T:
        import tensorstore as ts

        try:
            store = ts.KvStore.open(self.kvstore(), context=ts.Context(_RETRIES)).result()
            return question(store).result()
        except ValueError as error:
            raise CheckpointError(
                f"cannot read {self}: {str(error).splitlines()[0]}; check the name, the network "
                "and the credentials (gcloud auth application-default login)"
            ) from error


Location = Path | BucketPath
