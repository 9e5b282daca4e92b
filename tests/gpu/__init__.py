"""Checks that need a GPU machine, and run there by a script."""
