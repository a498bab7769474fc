"""Damage to a run's checkpoints is seen, and a full disk: pytest tests/training/test_folder.py"""

import errno
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import tiny_t5

from specdec.models.partitioning import make_mesh
from specdec.models.t5 import T5Target
from specdec.training import Adafactor, TrainingError
from specdec.training.folder import Folder
from specdec.training.updates import State


def state(step: int) -> State:
    params = {"decoder": {"kernel": jax.random.normal(jax.random.key(step), [48, 64])}}
    return State(params, Adafactor().transformation().init(params), jnp.asarray(step, jnp.int32))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run with checkpoints of steps 3 and 5."""
    path = tmp_path_factory.mktemp("run") / "sound"
    with Folder(path, {}) as folder:
        folder.save(3, state(3))
        folder.save(5, state(5))
    return path


def flip(path, draws) -> None:
    """One bit of the latest checkpoint's arrays, longer files more often."""
    files = sorted(file for file in (path / "checkpoints/5/default").rglob("d/*"))
    sizes = np.array([file.stat().st_size for file in files])
    file = files[draws.choice(len(files), p=sizes / sizes.sum())]
    data = bytearray(file.read_bytes())
    data[draws.integers(len(data))] ^= 1 << draws.integers(8)
    file.write_bytes(data)


def restored(path) -> State:
    with Folder(path, {}) as folder:
        return folder.restore(jax.eval_shape(lambda: state(0)))


def same(a: State, b: State) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_a_flipped_bit_is_never_gone_on_with(sound, tmp_path):
    assert same(restored(sound), state(5))
    seen = []
    for seed in range(8):
        copy = shutil.copytree(sound, tmp_path / str(seed))
        flip(copy, np.random.default_rng(seed))
        try:
            assert same(restored(copy), state(5))
        except TrainingError as error:
            seen.append(str(error))
    named = [line for line in seen if re.search(r"/5 is damaged: (params|optimizer)/\S+ has", line)]
    assert len(seen) >= 5 and named, seen
    assert not any("\n" in line for line in seen)


def test_the_remedy_works(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    for file in (copy / "checkpoints/5/default").rglob("d/*"):
        file.write_bytes(b"")
    message = r"cannot read \S+/5: .*; delete that folder, and the run resumes from the checkpoint"
    with pytest.raises(TrainingError, match=message):
        restored(copy)
    shutil.rmtree(copy / "checkpoints/5")
    assert same(restored(copy), state(3))


def test_a_checkpoint_without_checksums_is_gone_on_with(sound, tmp_path):
    """As those before this version are."""
    copy = shutil.copytree(sound, tmp_path / "copy")
    file = copy / "checkpoints/5/_CHECKPOINT_METADATA"
    file.write_text(file.read_text().replace('"crc32"', '"other"'))
    assert same(restored(copy), state(5))


def over(mesh, step: int) -> State:
    """A state whose kernels are divided by columns."""

    def place(leaf):
        spec = PartitionSpec(None, "model") if leaf.ndim == 2 else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, state(step))


def abstract(given: State) -> State:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), given
    )


def test_a_checkpoint_is_restored_over_another_mesh(sound, tmp_path):
    meshes = [make_mesh(parts) for parts in (8, 2)]
    with Folder(tmp_path, {}) as folder:
        folder.save(5, over(meshes[0], 5))
    wanted = over(meshes[1], 5)
    for path in (sound, tmp_path):
        alone = restored(path)
        assert same(alone, state(5))
        assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(alone))
        with Folder(path, {}) as folder:
            found = folder.restore(abstract(wanted))
        assert same(found, wanted)
        assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding, found, wanted))


def test_a_state_may_be_overwritten_while_it_is_written(tmp_path):
    add = jax.jit(lambda given: jax.tree.map(lambda leaf: leaf + 1, given), donate_argnums=0)
    with Folder(tmp_path, {}) as folder:
        for step in (3, 5):
            given = state(step)
            folder.save(step, given)
            jax.block_until_ready(add(given))
    assert same(restored(tmp_path), state(5))


@pytest.mark.ci
def test_an_older_export_stays_until_the_checkpoint_is_complete(tmp_path, monkeypatch):
    config = tiny_t5(16, 4, 4)
    params, seen = T5Target(config).init(jax.random.key(0)), []
    with Folder(tmp_path, {}) as folder:
        folder.export(3, params, config, {})
        names = [path.name for path in (tmp_path / "export").iterdir()]
        (tmp_path / "export/.checkpoint_4.killed").mkdir()
        monkeypatch.setattr(folder, "wait", lambda: seen.extend((tmp_path / "export").iterdir()))
        folder.export(5, params, config, {})
        monkeypatch.undo()
    assert names == ["checkpoint_3"]
    assert {"checkpoint_3", "checkpoint_5"} <= {path.name for path in seen}
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["checkpoint_5"]


def test_what_cannot_be_written_is_named_and_leaves_what_was_there(sound, tmp_path, small_files):
    copy = shutil.copytree(sound, tmp_path / "copy")
    with Folder(copy, {}) as folder:
        with small_files(), pytest.raises(OSError) as caught:
            folder.save(7, state(7))
            folder.wait()
        assert caught.value.errno == errno.EFBIG
        assert caught.value.filename == str(copy / "checkpoints/7")
    assert same(restored(copy), state(5))
    with Folder(copy, {}) as folder:
        folder.save(7, state(7))
    assert same(restored(copy), state(7))


def test_records_after_a_step_are_cut(tmp_path):
    """Records without a step stay."""
    records = [
        {"step": 1},
        {"step": 2},
        {"accuracy": 0.5},
        {"step": 3},
        {"step": None},
        {"step": 4},
    ]
    with Folder(tmp_path / "run", {}) as folder:
        for record in records:
            folder.log(record)
        folder.cut_log(2)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [records[i] for i in (0, 1, 2, 4)]


@pytest.mark.parametrize("processes, closed", [(1, 1), (2, 0)])
def test_checkpoints_of_a_failed_run_are_closed_unless_there_are_other_hosts(
    tmp_path, monkeypatch, processes, closed
):
    """Another host may be lost, and would be waited for."""
    calls = []
    with pytest.raises(KeyError), Folder(tmp_path / "run", {}) as folder:
        close = folder._checkpoints.close
        monkeypatch.setattr(folder._checkpoints, "close", lambda: calls.append(1))
        monkeypatch.setattr(jax, "process_count", lambda: processes)
        raise KeyError
    monkeypatch.undo()
    close()
    assert len(calls) == closed
