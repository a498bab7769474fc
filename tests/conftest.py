"""Shared set-up: the devices tests see, repeatable examples, and the optional development data."""

import contextlib
import gc
import importlib.metadata
import os
from pathlib import Path

import hypothesis
import pytest

# JAX reads these when it is first imported. Sharding tests need eight devices on any machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"  # no axis is added by accident
# Compiling is most of what tests do, and their programs run once: they are not optimized, and with
# the JAX that has been tried XLA's older way to write code takes half the time. (A flag that XLA
# does not know ends the process.) Flags from outside come last, so that they win.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
XLA_FLAGS = ["--xla_force_host_platform_device_count=8"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    XLA_FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a path that does not exist is not asked for
os.environ["XLA_FLAGS"] = " ".join([*XLA_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()

# Layouts are chosen by what was measured once, on a machine like many, and not by this one's times.
DEVICE = Path(__file__).parent / "golden" / "devices" / "epyc_avx2.json"
os.environ.setdefault("SPECDEC_PRODUCTS", str(DEVICE))

# Tracing makes millions of objects that live on: looking for garbage among them is 4 % of the time.
gc.set_threshold(100_000, 50, 50)

# The same examples on every run, so that a failure is a change and not a draw.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data beside the checkout; a test that asks for it is extra."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.exists():
        pytest.skip("../shared is not here")
    return folder


@pytest.fixture
def small_files():
    """A context in which no file of this process may grow beyond 2,000 bytes: a full disk, but for
    the number of the error."""
    import resource

    @contextlib.contextmanager
    def small():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return small


@pytest.fixture
def plant(monkeypatch):
    """monkeypatch.setattr for traced code: no program compiled before or after is reused."""
    import support

    support.forget_programs()
    yield monkeypatch.setattr
    support.forget_programs()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder of compiled programs, for `--compilation_cache_dir`: JAX looks only once whether
    there is one."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
    yield tmp_path_factory.mktemp("cache")
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True, scope="module")
def files_leave_nothing_behind():
    """No setting of JAX's, and not too many compiled programs."""
    import jax

    before = jax.config.values.copy()
    yield
    # Where programs are cached changes nothing in them.
    after = {
        name: value
        for name, value in jax.config.values.items()
        if before[name] != value and "_cache_" not in name
    }
    assert not after, f"a test file left JAX set otherwise than it found it: {after}"
    _forget_programs_if_many()


@pytest.fixture(autouse=True)
def a_slow_test_leaves_few_programs(request):
    """A file may have hundreds of slow tests, and each compiles some."""
    yield
    if request.node.get_closest_marker("slow"):
        _forget_programs_if_many()


def _forget_programs_if_many() -> None:
    """On a CPU each compiled program maps memory, and thousands of them are more mappings than
    Linux allows a process (65,530), which ends it."""
    import jax

    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_bytes().splitlines()) > 15_000:
        jax.clear_caches()
