"""Compiled programs, cached between runs."""

from __future__ import annotations

import os
import tempfile

import jax

from pe_jax.console.terminal import say
from pe_jax.files import cache_folder

# Every program is kept: the quickstart's 49 take one megabyte. JAX's own default of 1.0 would keep
# two of them, and any limit in seconds keeps others on a busy machine than on an idle one.
_MIN_COMPILE_SECONDS = 0.0


def keep_compiled_programs() -> None:
    """From now on JAX keeps what it compiles in the cache folder, and looks there first.

    `JAX_COMPILATION_CACHE_DIR` in the environment wins, empty too. Where the folder cannot be
    written, a line says so and nothing is kept. Machines may share it: JAX's key of a program holds
    the versions, the compiler's flags and the kind of the devices, of a CPU all its features.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        say(f"Compiled programs are not kept: {error}. PE_JAX_CACHE names another folder.")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)
