"""See ``command``."""

from farandole.testing.stress.command import main

main()
