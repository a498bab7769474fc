"""Pictures as pixels: pytest tests/tasks/test_pictures.py

The golden pixels are those of transformers' image processor; see tests/golden/README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from specdec.tasks import TaskError
from specdec.tasks.pictures import PictureSettings

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_llava" / "golden.npz"
SHORTER = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
RECORDS = {
    "wide": SHORTER,
    "high": SHORTER | {"size": 28, "crop_size": 28},  # as older files say it
    "small": SHORTER | {"size": {"shortest_edge": 21}},
    "stretched": SHORTER | {"size": {"height": 28, "width": 28}},
    "grey": SHORTER,
}


@pytest.mark.parametrize("name", RECORDS)
def test_pixels_are_those_of_transformers(name, tmp_path):
    golden = np.load(GOLDEN)
    image = Image.fromarray(golden[f"{name}_bytes"])
    image.save(tmp_path / "picture.png")
    settings = PictureSettings.from_record(RECORDS[name])
    for picture in (image, tmp_path / "picture.png"):
        found = settings.pixels(picture)
        assert found.dtype == np.float32
        atol = 1e-5  # some roundings of numbers up to 2.2
        np.testing.assert_allclose(found, golden[f"{name}_pixels"], rtol=0, atol=atol)


def test_steps_can_be_left_out():
    off = dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False)
    array = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    found = PictureSettings.from_record(SHORTER | off).pixels(Image.fromarray(array))
    np.testing.assert_array_equal(found, array.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "record, says",
    [
        ({"do_pad": True}, "do_pad is True, and supported is False; use another model"),
        ({"size": {"longest_edge": 5}}, "a size of pictures is .'longest_edge': 5.; supported are"),
        ({"image_mean": 0.5}, "PictureSettings.mean is 0.5; give three numbers, for red"),
        ({"size": 0}, r"PictureSettings.size is \(0,\); give a side, as in \(336,\)"),
    ],
)
def test_other_settings_are_refused_in_one_line(record, says):
    with pytest.raises(ValueError, match=says) as raised:
        PictureSettings.from_record(record)
    assert "\n" not in str(raised.value)


def test_pillow_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TaskError, match="pictures need Pillow; pip install pillow"):
        PictureSettings().pixels("a.png")
