"""Files on this machine and in stores: atomic writing, content digests, locks, and errors of unreachable stores."""
