"""Files on this machine and in stores: atomic writing, digests, locks, readers, and errors of unreachable stores."""
