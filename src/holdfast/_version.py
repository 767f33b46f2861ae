"""The version of this package; pyproject.toml reads it from here.

A plain constant, so that an executor can compare it with the driver's without installed package
metadata, which is missing when the package was shipped as a zip.
"""

__version__ = "0.1.0"
