"""`python -m hostfork`, and the entry point of the `hostfork` command."""


def main() -> None:
    """Run the command line; does not return."""
    from hostfork.cli.main import run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
