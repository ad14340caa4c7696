"""`python -m hostfork`, and the entry point of the `hostfork` command."""

import sys


def main() -> None:
    """Run the command line; does not return.

    A run's helper is started before anything else is imported: on two cores both get ready at once.
    """
    if sys.argv[1:2] == ["run"]:
        from hostfork.workload.launch import prestart

        prestart()
    from hostfork.cli.main import run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
