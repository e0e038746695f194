"""Run `mbt` as `python -m mbt_cli`."""

from mbt_cli.app import program

program()
