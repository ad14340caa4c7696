"""The command line: the only place that prints or chooses an exit status."""
