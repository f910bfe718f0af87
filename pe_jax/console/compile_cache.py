"""Compiled programs, cached between runs."""

from __future__ import annotations

import os
import tempfile

import jax

from pe_jax.console.terminal import say
from pe_jax.files import cache_folder

# Every program is cached: the quickstart's 49 take one megabyte. JAX's default of 1.0 would cache
# two of them, and which ones a limit in seconds caches depends on how busy the machine is.
_MIN_COMPILE_SECONDS = 0.0


def cache_compiled_programs() -> None:
    """Turns on JAX's persistent compilation cache, in the cache folder.

    `JAX_COMPILATION_CACHE_DIR` in the environment has precedence, even if empty. If the folder
    cannot be written, a message says so and nothing is cached. Machines may share it: JAX's key of
    a program includes versions, compiler flags and the kind of device, for a CPU all its features.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        say(f"Compiled programs are not cached: {error}. PE_JAX_CACHE names another folder.")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)
