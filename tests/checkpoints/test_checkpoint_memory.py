"""How much host memory loading takes: pytest -m slow tests/checkpoints/test_checkpoint_memory.py"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec.checkpoints import FORMATS, save
from specdec.models.t5 import T5Config, T5Target

CONFIG = T5Config(
    vocab_size=4096,
    emb_dim=512,
    num_heads=8,
    head_dim=64,
    mlp_dim=2048,
    num_encoder_layers=8,
    num_decoder_layers=8,
)  # 79 million parameters, 316 MB in float32
SMALL = dataclasses.replace(CONFIG, vocab_size=8, emb_dim=16, mlp_dim=16)
# The peak of a process of its own, over what it held when everything was imported and had run once.
# The window is small against this model, as the usual one is against a large model.
LOAD = """
import json, sys, jax
from specdec.checkpoints import arrays, config_from, load

def memory(line):
    status = dict(row.split(":", 1) for row in open("/proc/self/status"))
    return int(status[line].split()[0]) * 1024

small, path, dtype = sys.argv[1:]
arrays._IN_FLIGHT = 4 * 2**20
load(small, config=config_from(small), dtype=dtype)
before = memory("VmRSS")
sizes = [leaf.nbytes for leaf in jax.tree.leaves(load(path, dtype=dtype))]
print(json.dumps([memory("VmHWM") - before, sum(sizes), max(sizes)]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The model in every format."""
    folder = tmp_path_factory.mktemp("checkpoints")
    draw = np.random.default_rng(0)
    for parent, config in ((folder, CONFIG), (folder / "small", SMALL)):
        shapes = T5Target(config).parameter_shapes()
        params = jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape, np.float32), shapes)
        for format in FORMATS:
            save(parent / format, params, config=config, format=format)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_host_holds_little_more_than_the_parameters(folder, format, dtype):
    command = [sys.executable, "-c", LOAD, folder / "small" / format, folder / format, dtype]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, parameters, largest = json.loads(done.stdout)
    print(f"{format} {dtype}: {peak / parameters:.3f}")
    assert peak <= 1.2 * parameters + largest
