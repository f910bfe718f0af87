"""Reports on a run: python eval.py --workdir=W [--out=R]."""

from pathlib import Path

from absl import flags

from pe_jax.command import main
from pe_jax.tasks.report import report

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_OUT = flags.DEFINE_string("out", None, "Where the report goes; default WORKDIR/report.")


def evaluate() -> None:
    folder = Path(_WORKDIR.value).expanduser()
    out = Path(_OUT.value).expanduser() if _OUT.value else folder / "report"
    print(report(folder, out).text)
    print(f"Written to {out}")


if __name__ == "__main__":
    main(evaluate)
