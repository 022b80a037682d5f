"""Entry point of ``python -m farandole.testing.stress``; see ``command``."""

from farandole.testing.stress.command import main

main()
