"""What do kept programs save? Seconds from a start to the end of the first step, without and with.

    python benchmarks/compilation_cache.py [--rounds=5] [--out=FILE] [--config=... --config.KEY=...]

Every start is `train.py` itself, all of it: interpreter, imports, flags, data (tokenized before the
clock starts), parameters, one training step, whose line in the log stops the clock. In turn with an
empty folder of programs and with what that start left there, several rounds; next to them, what
`import jax` takes alone. Prints medians and their ratio, and writes them to --out as JSON.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def start(cache: Path, arguments: list[str]) -> float:
    """Seconds from the start of a process to the end of its first step, with what it prints."""
    environment = {**os.environ, "PE_JAX_CACHE": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begin = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as workdir,
        subprocess.Popen(
            [
                *(sys.executable, "train.py", *arguments),
                *("--config.log_every=1", f"--workdir={workdir}/run"),
            ],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr
        printed = []
        for line in process.stderr:
            printed.append(line)
            if re.match(r"step +1/", line):
                elapsed = time.perf_counter() - begin
                process.kill()
                return elapsed
    raise SystemExit("A start failed:\n" + "".join(printed))


def import_jax() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", "import jax"], check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="Starts of each kind.")
    parser.add_argument("--out", type=Path, help="JSON file of the results.")
    options, rest = parser.parse_known_args()
    arguments = rest or ["--config=configs/quickstart.py"]
    empty, warm, bare = [], [], []
    with tempfile.TemporaryDirectory() as cache:
        programs = Path(cache) / "compiled"
        start(Path(cache), arguments)  # Tokenizes.
        for _ in range(options.rounds):
            shutil.rmtree(programs)
            empty.append(start(Path(cache), arguments))
            warm.append(start(Path(cache), arguments))
            bare.append(import_jax())
        sizes = [path.stat().st_size for path in programs.iterdir()]
    results = {
        "empty_seconds": statistics.median(empty),
        "warm_seconds": statistics.median(warm),
        "import_jax_seconds": statistics.median(bare),
        "ratio": statistics.median(e / w for e, w in zip(empty, warm, strict=True)),
        "programs": len(sizes),
        "bytes": sum(sizes),
    }
    print(
        f"start to first step: {results['empty_seconds']:.1f} s with no programs kept, "
        f"{results['warm_seconds']:.1f} s with {len(sizes)} "
        f"({sum(sizes) / 1e6:.1f} MB), ratio {results['ratio']:.1f}; `import jax` alone "
        f"{results['import_jax_seconds']:.1f} s"
    )
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
