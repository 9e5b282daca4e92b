"""Tests of the rivals use the same small instances as those of the method."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
