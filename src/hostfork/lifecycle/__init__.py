"""One fork from plan to release: the only package that sees all the others."""
