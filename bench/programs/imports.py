"""Only imports what any program with Arrow imports."""

import numpy  # noqa: F401
import pyarrow  # noqa: F401

from bench.programs.saying import there

there()
