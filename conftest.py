"""Tests run on the CPU, with four simulated devices and array shapes checked at run time."""

import importlib.util
import mmap
import os
import platform
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"


def known(flag):
    """Return whether this jaxlib has the XLA flag. An unknown flag would end the process.

    The name of a flag stands between two NUL bytes. A removed flag's name remains in the reserved
    fields of XLA's protobuf descriptors, between other bytes.
    """
    (folder,) = importlib.util.find_spec("jaxlib").submodule_search_locations
    library = Path(folder) / "libjax_common.so"
    if not library.is_file():  # Versions may name it otherwise.
        return False
    with (
        open(library, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        return text.find(b"\0" + flag.encode() + b"\0") >= 0


# Compiled quickly instead of well: most of what tests do is compiling. XLA's newer emitters of
# fusions take two to three times as long as those before them, for programs as small as these.
# Since jaxlib 0.12 fusions have no others. An operation by itself still has, unless it is wrapped
# in a fusion: without these wrappers compiling takes about 5 % less. No other flag or optimization
# level compiles faster.
# AVX2 at most, so that results do not depend on whether a machine has AVX-512.
QUICK = {
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
if platform.machine() == "x86_64":
    QUICK["xla_cpu_max_isa"] = "AVX2"
if not known("xla_cpu_use_fusion_emitters"):
    QUICK["xla_disable_hlo_passes"] = "fusion-wrapper"
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=4",
        *(f"--{flag}={value}" for flag, value in QUICK.items() if known(flag)),
        os.environ.get("XLA_FLAGS", ""),
    ]
)

# By default Hypothesis writes to the working directory.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY",
    str(Path(tempfile.gettempdir(), "pe_jax_hypothesis")),
)

# Programs without the lines of code that they come from are made faster.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# Nothing is cached on disk: within a process the library traces and compiles equal programs once.
os.environ["JAX_COMPILATION_CACHE_DIR"] = ""

from helpers import added_field

added_field.add_if_asked()  # Before any record is defined.

from helpers.shape_checks import beartype_once
from jaxtyping import install_import_hook

# Every `Float[Array, "B L H d"]` of these rooms is checked on each call.
install_import_hook(
    ["pe_jax.encodings", "pe_jax.attention", "pe_jax.properties"],
    f"{beartype_once.__module__}.{beartype_once.__name__}",
)

import functools
import gc
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.experimental.pallas import tpu as pltpu

from pe_jax.attention.devices import emulated_devices
from pe_jax.attention.implementations import queries_per_block
from pe_jax.trainer.console import stopping

# With an empty folder for its cache, JAX would still compute the key of each program. Commands that
# tests start as processes have caches of their own.
jax.config.update("jax_enable_compilation_cache", False)

# Before version 0.12 JAX makes an MLIR context for each program that it lowers, and loads all
# dialects into it. That is a fifth of the time that an operation outside of jit takes, and a
# megabyte until the next collection. Version 0.12 takes one for ten programs of a thread. Here the
# programs of a module of tests share one, but for those of other threads.
make_context = mlir.make_ir_context
shared_context = functools.lru_cache(maxsize=1)(make_context)


def context_of_thread():
    """Return the MLIR context of the module of tests, or a new one outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        return shared_context()
    return make_context()


mlir.make_ir_context = context_of_thread


@pytest.fixture(scope="module", autouse=True)
def new_mlir_context():
    """Free the context of the module before, which keeps all constants of its programs."""
    shared_context.cache_clear()


# Linux ends a process with more, 65,530 by default: compiling the next program crashes. A compiled
# program takes three or more, as long as it stays in JAX's caches.
MOST_MAPPINGS = 30_000


@pytest.fixture(scope="module", autouse=True)
def few_memory_mappings():
    """Drop compiled programs when the process has many memory mappings."""
    mappings = Path("/proc/self/maps")
    if mappings.exists() and len(mappings.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def same_signals():
    """A test that left signals to others would end tests that send them to their own process."""
    yield
    stopping.end()
    stopping._released.clear()


@pytest.fixture(scope="session", autouse=True)
def four_devices():
    assert jax.device_count() == 4


def roll(x, shift, axis, *, stride, stride_axis):
    """`pltpu.roll` by its definition. Off a TPU that is an operation a row: seconds to compile."""
    assert x.ndim == 2 and axis == 1 and stride_axis == 0
    row, column = (jax.lax.broadcasted_iota(jnp.int32, x.shape, n) for n in (0, 1))
    return jnp.take_along_axis(x, (column - shift - stride * row) % x.shape[1], axis=1)


@pytest.fixture(scope="session")
def checked_roll():
    x = np.arange(24.0).reshape(3, 8)
    args = dict(shift=5, axis=1, stride=2, stride_axis=0)
    original = jax.jit(functools.partial(pltpu.roll, **args))
    np.testing.assert_array_equal(original(x), roll(x, **args))
    return roll


@pytest.fixture
def quick_kernel(checked_roll, monkeypatch):
    """The TPU kernel runs as ordinary operations, and compiles in less time."""
    monkeypatch.setattr(pltpu, "roll", checked_roll)
    with emulated_devices():
        yield


@pytest.fixture
def small_blocks():
    """Four queries at a time in "fused", so that short sequences have several blocks."""
    with queries_per_block(4):
        yield


@pytest.fixture
def chromium():
    """A browser. CHROMIUM names the program if it is not on the path."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if program is None:
        pytest.skip("no Chromium on the path; CHROMIUM=PROGRAM names one")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


def pytest_collection_finish():
    """What is imported stays: the collector need not go through it, nor as often as for a small
    program. That is a tenth of the tests' time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
