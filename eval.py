"""Measures, compares and exports: `python eval.py --help`; installed, `pe-jax eval`."""

from pe_jax.trainer.console import huge_pages, stopping

if __name__ == "__main__":
    stopping.catch()  # The first line: signals may come while the rest is imported.
    huge_pages.use()

from pe_jax.trainer.commands.eval import main

if __name__ == "__main__":
    main()
