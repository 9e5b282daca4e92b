"""Files on this machine and in stores: atomic writing, digests, locks, and errors of unreachable stores and full disks."""
