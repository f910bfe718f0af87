"""Trains: `python train.py --help`; from an installed package, `pe-jax train`."""

from pe_jax.trainer.console import huge_pages, stopping

if __name__ == "__main__":
    stopping.catch()  # The first line: signals may come while the rest is imported.
    huge_pages.use()

from pe_jax.trainer.commands.train import main

if __name__ == "__main__":
    main()
