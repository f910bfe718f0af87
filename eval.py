"""Reports on a run, or compares several: python eval.py --workdir=W | --runs='R/*' [--out=O]."""

import glob
import os
from pathlib import Path

from absl import flags

from pe_jax.command import main
from pe_jax.tasks.comparison import compare
from pe_jax.tasks.report import report

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run to report on.")
_RUNS = flags.DEFINE_string("runs", None, "Glob of the folders of runs to compare.")
_OUT = flags.DEFINE_string("out", None, "Where the results go; default WORKDIR/report.")
flags.mark_flags_as_mutual_exclusive(["workdir", "runs"], required=True)


def evaluate() -> None:
    if _WORKDIR.value:
        folder = Path(_WORKDIR.value).expanduser()
        out = Path(_OUT.value).expanduser() if _OUT.value else folder / "report"
        print(report(folder, out).text)
    else:
        out = Path(_OUT.value or "comparison").expanduser()
        folders = [Path(p) for p in sorted(glob.glob(os.path.expanduser(_RUNS.value or "")))]
        print(compare([f for f in folders if (f / "config.json").exists()], out))
    print(f"Written to {out}")


if __name__ == "__main__":
    main(evaluate)
