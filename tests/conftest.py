"""Shared set-up: the devices tests see, repeatable examples, and the optional development data."""

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import resource
import shutil
import tempfile
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
# Without the lines of source of each operation, lowering takes a tenth less of a test's time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
XLA_FLAGS = ["--xla_force_host_platform_device_count=8"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    XLA_FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a path that does not exist is not asked for
os.environ["XLA_FLAGS"] = " ".join([*XLA_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()

# Layouts are chosen by what was measured once, on a machine like many, and not by this one's times.
DEVICE = Path(__file__).parent / "golden" / "devices" / "epyc_avx2.json"
os.environ.setdefault("SPECDEC_PRODUCTS", str(DEVICE))

# A run has a folder for temporary files, which is removed at its end: libraries leave some behind.
if "PYTEST_XDIST_WORKER" not in os.environ:
    RUN = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="specdec.tests.")

pytest_plugins = ["margins"]

MEMORY = 1.8e9  # bytes that a process may hold after a test, with its compiled programs
ROOM = 0.25e9  # of them for programs, at least: what a process holds without any grows as well

# Tracing makes millions of objects that live on: looking for garbage among them is 4 % of the time.
gc.set_threshold(100_000, 50, 50)

# The same examples on every run, so that a failure is a change and not a draw.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(RUN, ignore_errors=True)


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


@pytest.fixture(scope="session")
def cache() -> Path:
    """A folder of compiled programs that the processes of a run share, for
    `--compilation_cache_dir`. To cache the programs of all tests takes longer than to compile."""
    return Path(os.environ["TMPDIR"]) / "programs"


@pytest.fixture
def empty_cache(tmp_path):
    """A folder of compiled programs of a test's own: JAX looks only once whether there is one."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
    yield tmp_path
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True, scope="module")
def files_leave_nothing_behind():
    """No setting of JAX's."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.values.copy()
    yield
    folder = "jax_compilation_cache_dir"  # commands set it
    jax.config.update(folder, before[folder])
    compilation_cache.reset_cache()
    # How programs are cached changes nothing in them.
    after = {
        name: value
        for name, value in jax.config.values.items()
        if before[name] != value and "_cache_" not in name
    }
    assert not after, f"a test file left JAX set otherwise than it found it: {after}"


@pytest.fixture(autouse=True)
def few_programs_stay():
    """Forgets compiled programs when the process holds much memory."""
    yield
    if held() > most[0]:
        forget_programs()
        most[0] = max(MEMORY, held() + ROOM)


most = [MEMORY]  # what the process may hold now


def held() -> int:
    """Returns the bytes in memory of this process; 0 where that is not known."""
    statm = Path("/proc/self/statm")  # of Linux
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def pytest_collection_finish():
    forget_programs()  # of constants of test files


def forget_programs() -> None:
    """Gives the memory of compiled programs back to the system.

    A program is hundreds of kilobytes, in pieces that the allocator keeps for the next one unless
    it is asked to return them. Each also maps memory, which Linux allows a process 65,530 times.
    """
    import jax

    jax.clear_caches()
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # glibc has it
