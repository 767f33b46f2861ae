"""The version of this package; pyproject.toml reads it from here.

It is a plain constant, so that an executor can compare it with the driver's without looking for
installed metadata, which is missing when the package was shipped as a zip.
"""

__version__ = "0.1.0"
