"""Entry point of ``python -m workbench.nightly``; see ``command``."""

from workbench.nightly.command import main

main()
