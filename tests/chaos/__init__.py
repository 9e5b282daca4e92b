"""Long trials of what must survive: damaged input, kills, load. `make chaos` runs them; see `__main__`."""
