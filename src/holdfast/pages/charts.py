"""What is used of pygal, and the one place where it is imported.

pygal leaves a finder of modules behind, for plugins with maps. It has no `find_spec`, which Python
3.12 and pytest stumble over whenever anything is imported later. So it is taken away again.
"""

from __future__ import annotations

import sys

from pygal import XY, Bar, HorizontalStackedBar
from pygal.etree import etree
from pygal.style import Style

__all__ = ["XY", "Bar", "HorizontalStackedBar", "Style", "etree"]

sys.meta_path[:] = [one for one in sys.meta_path if hasattr(one, "find_spec")]
