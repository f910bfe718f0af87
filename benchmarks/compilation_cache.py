"""What do kept programs save? Seconds from a start to the end of the first step, without and with.

    python benchmarks/compilation_cache.py [--config=configs/quickstart.py] [--config.KEY=...]

Every start is a process of its own: imports, data (tokenized before the clock starts), parameters,
one training step. In turn with an empty folder of programs and with what that start left there,
several rounds. Prints the medians and their ratio, and writes them to --out as JSON.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from absl import app, flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", "configs/quickstart.py")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Starts of each kind.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")
_ONE = flags.DEFINE_bool("one", False, "Be one of the starts; the benchmark sets it itself.")


def start() -> None:
    """To the end of the first step, as train.py does it; says so on standard output."""
    import jax

    from pe_jax.console.compile_cache import cache_compiled_programs
    from pe_jax.tasks import pretraining
    from pe_jax.training import sharding

    cache_compiled_programs()
    experiment = pretraining.build(_CONFIG.value)
    stage = experiment.stages[0]
    batch = sharding.to_global(next(iter(stage.batches)), sharding.by_rows(experiment.mesh))
    jax.block_until_ready(stage.train_step(experiment.init(), batch))
    print("stepped", flush=True)


def seconds(cache: str) -> float:
    """From the start of a process to the end of its first step."""
    environment = {**os.environ, "PE_JAX_CACHE": cache}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *sys.argv, "--one"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        stepped = "stepped\n" in iter(process.stdout.readline, "")
        elapsed = time.perf_counter() - begin
    if not stepped:
        raise SystemExit(f"A start failed with exit code {process.returncode}.")
    return elapsed


def main(_) -> None:
    if _ONE.value:
        start()
        return
    empty, warm = [], []
    with tempfile.TemporaryDirectory() as cache:
        programs = Path(cache) / "programs"
        seconds(cache)  # Tokenizes.
        for _ in range(_ROUNDS.value):
            shutil.rmtree(programs)
            empty.append(seconds(cache))
            warm.append(seconds(cache))
        sizes = [path.stat().st_size for path in programs.iterdir()]
    results = {
        "empty_seconds": statistics.median(empty),
        "warm_seconds": statistics.median(warm),
        "ratio": statistics.median(e / w for e, w in zip(empty, warm, strict=True)),
        "programs": len(sizes),
        "bytes": sum(sizes),
    }
    print(
        f"start to first step: {results['empty_seconds']:.1f} s with no programs kept, "
        f"{results['warm_seconds']:.1f} s with {len(sizes)} "
        f"({sum(sizes) / 1e6:.1f} MB), ratio {results['ratio']:.1f}"
    )
    if _OUT.value:
        Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
