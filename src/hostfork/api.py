"""hostfork for programs: plan, run, and what finished forks contain. The command line uses nothing else.

Nothing here prints, touches signals or exits. Every failure is a `HostforkError`. `run` can be called from any thread
of any program, any number at once: namespace work happens in a fresh helper process.
"""
