"""The program that builds the view and execs: standard library only, nothing of hostfork outside this package."""
