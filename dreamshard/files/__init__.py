"""Files of this machine and of stores: locks, and the errors of places that cannot be reached."""
