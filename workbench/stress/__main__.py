"""Entry point of ``python -m workbench.stress``; see ``command``."""

from workbench.stress.command import main

main()
