"""JAX's persistent cache of compiled programs, between runs."""

from __future__ import annotations

import os
import tempfile

import jax

from pe_jax.common.files import cache_folder
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.disk_cache import private_folder, share_with_group


def cache_compiled_programs() -> None:
    """Turn on JAX's persistent compilation cache, in the cache folder.

    `JAX_COMPILATION_CACHE_DIR` in the environment takes precedence, even if it is empty. A compiled
    program is code: whoever can write the cache can run code in this process.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = (cache_folder() / "compiled").absolute()
    try:
        if not folder.is_dir():
            private_folder(folder.parent)
            share_with_group(private_folder(folder), folder.parent)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        log(
            f"Compiled programs are not cached: {error}. Set PE_JAX_CACHE to use another folder."
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # All programs: the quickstart's 49 take one megabyte, and JAX's default would cache two.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
