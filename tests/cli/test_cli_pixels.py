"""Pictures as texts of grey levels, with an untrained pair: pytest tests/cli/test_cli_pixels.py"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import checkpoints, cli, tasks

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ci
PICTURE = "aabnhaaaaahocaaaaanfaaaaaaqdaaaaadqkmmdaadqlfjmaabnlenlaaabmqlca"


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "data"))
        patch.syspath_prepend(str(ROOT / "scripts" / "studies"))
        import make_digits
        import pixels

        yield make_digits, pixels


@pytest.fixture(scope="module")
def data(scripts, tmp_path_factory):
    """An untrained target, a draft with other parameters, and two pictures."""
    folder = tmp_path_factory.mktemp("pixels")
    for name, heads in (("start", 2), ("draft", 1)):
        scripts[0].write_start(folder / name, heads, layers=1)
    for split in ("train", "validation", "test"):
        (folder / f"{split}.tsv").write_text(f"<6>\t{PICTURE}\n<0>\t{PICTURE}\n")
    (folder / "completed.tsv").write_text(f"<6>{PICTURE[:16]}\t{PICTURE[16:]}\n" * 2)
    return folder


def flags(data, config):
    paths = {
        "DATA": data,
        "CHECKPOINT_PATH": data / "start",
        "DRAFT_CHECKPOINT_PATH": data / "draft",
    }
    given = [f"--gin.{name}={str(path)!r}" for name, path in paths.items()]
    return [f"--gin_file=configs/pixels/{config}.gin", *given, "--gin.BATCH_SIZE=2"]


def test_a_pixels_id_is_its_grey_level(data):
    vocabulary = tasks.recorded_vocabulary(*checkpoints.vocabulary_from(data / "start")).plain()
    ids = vocabulary.encode(PICTURE)
    assert ids[:8] == [0, 0, 1, 13, 7, 0, 0, 0] and vocabulary.decode(ids) == PICTURE
    assert vocabulary.input_ids("<6>") == [24] and vocabulary.eos_id == 17
    assert vocabulary.input_ids(f"<0>{PICTURE[:2]}") == [18, 0, 0]
    assert vocabulary.decode([3, 17, 4]) == "d"


def test_a_picture_is_moved_only_without_loss(scripts):
    picture = np.zeros((8, 8), int)
    picture[0, 3] = 5
    moves = [tuple(np.argwhere(one)[0]) for one in scripts[0].moved(picture)]
    assert sorted(moves) == [(down, 3 + right) for down in (0, 1) for right in (-1, 0, 1)]


def test_every_token_is_a_grey_level_and_coupled_pictures_are_the_targets(data, capsys):
    assert cli.main(["decode", *flags(data, "drawn"), "--verifier=coupled", "--compare"]) == 0
    out, err = capsys.readouterr()
    assert "all 2 outputs identical" in err
    first, second = out.splitlines()
    assert len(first) == len(second) == 64 and first != second
    assert set(first + second) <= set("abcdefghijklmnopq")


def test_the_bound_of_the_distance_rule_holds_and_a_wrong_bound_is_seen(data, scripts):
    pixels = scripts[1]
    run = pixels.harness.run_of(flags(data, "completed"), 2, batch_size=2)
    params = run.engine.params
    # A draft that is often close: the target's own table, moved by little.
    near = jax.tree.map(lambda x: x + 0.003 * jnp.sign(x), params["target"])
    plan = dataclasses.replace(
        run.plan,
        drafter=dataclasses.replace(run.plan.drafter, model=run.plan.target),
        verifier=pixels.Distance(4, pixels.GREYS),
    )
    output = pixels.decoded(run, plan, params := params | {"draft": near})
    found = pixels.bounded(run, plan, params, output)
    assert found["violations"] == 0 and found["changed"] > 0 and 0 < found["furthest"] <= 4
    narrow = dataclasses.replace(plan, verifier=pixels.Distance(0, pixels.GREYS))
    assert pixels.bounded(run, narrow, params, output)["violations"] == found["changed"]


def test_without_leave_the_distance_rule_is_refused(data, capsys):
    flag = "--gin.LOSSY=False"
    assert cli.main(["decode", *flags(data, "completed"), flag]) == 2
    assert "LOSSY" in capsys.readouterr().err
