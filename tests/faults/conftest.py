"""Makes the campaign importable by the name that its own processes know it by."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
