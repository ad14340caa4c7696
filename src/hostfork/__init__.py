"""hostfork runs a command in the same usable host environment, with selected independent state.

Programs use `hostfork.api`; the command line is `hostfork.cli`. Importing this package does nothing else.
"""

__version__ = "0.1.0"
