"""`python -m metaq` is the metaq command."""

from metaq.cli import main

main()
