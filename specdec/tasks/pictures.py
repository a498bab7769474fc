"""Turns pictures into the pixels that a model reads."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from specdec.common.file_names import check_regular
from specdec.common.json_values import JsonObject
from specdec.common.values import Checked, PositiveFloat, Rule, is_number, one_of, row_of
from specdec.tasks.loading import TaskError, quiet_stderr

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

# The formats that are read. Pillow reads more, but for EPS it starts another program.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_BICUBIC = 3  # Pillow's number
_METHODS = 6  # of resizing, in Pillow
_MOST = 2**26  # pixels of a picture after resizing, and of its crop
_SIZES = Annotated[tuple[int, ...], row_of(1, "a side, as in (336,), or height and width")]
_COLOURS = Annotated[
    tuple[float, ...],
    Rule(
        lambda row: isinstance(row, list | tuple) and len(row) == 3 and all(map(is_number, row)),
        "three numbers, for red, green and blue",
    ),
]


@dataclasses.dataclass(frozen=True)
class PictureSettings(Checked):
    """The steps from a picture to pixels, as CLIP's image processor in transformers does them.

    Args:
      size: the shorter side after resizing, or height and width; None for no resizing.
      crop: height and width that are cut out of the middle, with black around smaller pictures;
        None for no cut.
      mean: the mean of each colour, which is subtracted after `scale`.
      std: the standard deviation of each colour, by which the difference is divided.
      scale: the factor of the picture's bytes (0 to 255).
      resample: Pillow's number of the resizing method.
    """

    size: _SIZES | None = (224,)
    crop: _SIZES | None = (224, 224)
    mean: _COLOURS = (0.48145466, 0.4578275, 0.40821073)
    std: _COLOURS = (0.26862954, 0.26130258, 0.27577711)
    scale: PositiveFloat = 1 / 255
    resample: Annotated[int, one_of(range(_METHODS))] = _BICUBIC

    @classmethod
    def from_record(cls, record: JsonObject) -> PictureSettings:
        """Returns the settings in the `preprocessor_config.json` of a checkpoint.

        Raises:
          ValueError: a setting is not supported.
        """
        if record.get("do_pad"):
            raise ValueError("do_pad is True, and supported is False; use another model")
        settings: dict[str, Any] = {
            "size": _sides(record.get("size", 224), "shortest_edge"),
            "crop": _sides(record.get("crop_size", 224), None),
        }
        names = {"mean": "image_mean", "std": "image_std", "scale": "rescale_factor"}
        names["resample"] = "resample"
        settings |= {field: record[name] for field, name in names.items() if name in record}
        off: dict[str, dict[str, object]] = {
            "do_resize": {"size": None},
            "do_center_crop": {"crop": None},
            "do_rescale": {"scale": 1.0},
            "do_normalize": {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
        }
        for name, values in off.items():
            settings |= {} if record.get(name, True) else values
        return cls(**settings)

    def pixels(
        self, picture: str | os.PathLike | PillowImage, shape: Sequence[int] | None = None
    ) -> np.ndarray:
        """Returns the pixels [3, H, W] float32 of a picture, turned as its EXIF data say.

        Args:
          picture: a file, or an image of Pillow.
          shape: [3, H, W] that a model reads; None for any.

        Raises:
          TaskError: Pillow is not installed, the file is not a picture, or the pixels are too many
            or do not have the `shape`.
        """
        image = _opened(picture, self._check_size)
        size = self._resized(*image.size)
        shape_after = [3, *(self.crop or size[::-1])]
        if shape is not None and shape_after != list(shape):
            raise TaskError(
                f"picture {picture} becomes {shape_after} pixels, and the target reads "
                f"{list(shape)}; give tasks.PictureSettings size and crop {tuple(shape[1:])}"
            )
        if self.size is not None:
            image = image.resize(size, resample=self.resample)
        array = np.asarray(image).transpose(2, 0, 1)
        if self.crop is not None:
            array = _cropped(array, *self.crop)
        mean, std = (np.asarray(x, np.float32)[:, None, None] for x in (self.mean, self.std))
        return ((array * self.scale).astype(np.float32) - mean) / std

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Returns width and height after resizing."""
        if self.size is None:
            return width, height
        if len(self.size) > 1:
            return self.size[1], self.size[0]
        side, shorter = min(self.size), min(width, height)
        return int(side * width / shorter), int(side * height / shorter)

    def _check_size(self, picture: object, width: int, height: int) -> None:
        """Raises TaskError for a picture without pixels, or that would become too many."""
        if not width or not height:
            raise TaskError(f"{picture} is no picture that can be read (it has no pixels)")
        size = self._resized(width, height)
        rows, columns = self.crop or size[::-1]
        if (self.size is not None and math.prod(size) > _MOST) or rows * columns > _MOST:
            raise TaskError(
                f"picture {picture} has {width} x {height} pixels, and would become {size[0]} x "
                f"{size[1]}, cut to {columns} x {rows}; cut it to a part that is less narrow, or "
                "give tasks.PictureSettings another size"
            )


def _sides(sides: int | Mapping[str, int], shorter: str | None) -> tuple[int, ...]:
    """Returns transformers' size as (side,) or (height, width); `shorter` names a shorter side."""
    if isinstance(sides, int):
        return (sides,) if shorter else (sides, sides)
    if isinstance(sides, Mapping):
        if shorter and sides.keys() == {shorter}:
            return (sides[shorter],)
        if sides.keys() == {"height", "width"}:
            return sides["height"], sides["width"]
    known = f"{shorter}, or height and width" if shorter else "height and width"
    raise ValueError(f"a size of pictures is {sides!r}; supported are {known}")


def _opened(
    picture: str | os.PathLike | PillowImage, check_size: Callable[[object, int, int], None]
) -> PillowImage:
    """Returns an image of Pillow in red, green and blue, upright."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise TaskError("pictures need Pillow; pip install pillow") from error
    try:
        with quiet_stderr(), warnings.catch_warnings(), contextlib.ExitStack() as files:
            warnings.simplefilter("ignore")
            if isinstance(picture, Image.Image):
                image = picture
            else:
                check_regular(picture)
                image = files.enter_context(Image.open(picture, formats=FORMATS))
            check_size(picture, *image.size)
            return ImageOps.exif_transpose(image).convert("RGB")
    except TaskError:
        raise
    except Exception as error:  # of a damaged file, Pillow raises errors of many kinds
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TaskError(f"{picture} is no picture that can be read ({reason})") from error


def _cropped(array: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns the middle [3, height, width] of a picture, with zeros where it is smaller."""
    padding = [(0, 0)]
    for there, wanted in zip(array.shape[1:], (height, width), strict=True):
        missing = max(wanted - there, 0)
        padding.append((math.ceil(missing / 2), missing // 2))
    array = np.pad(array, padding)
    top, side = (array.shape[1] - height) // 2, (array.shape[2] - width) // 2
    return array[:, top : top + height, side : side + width]
