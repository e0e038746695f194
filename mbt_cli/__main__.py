"""`python -m mbt_cli` is `mbt`."""

from mbt_cli.app import main

main()
