"""PyIceberg's own configuration of catalogs: its YAML file, and the environment."""

from __future__ import annotations

from pyiceberg.utils.config import Config

from holdfast.errors import SettingsError
from holdfast.plain_text import in_short


def configured(name: str) -> dict[str, str] | None:
    """Return the properties of a catalog, or None if nothing names it.

    Args:
        name: The catalog's name, as in `.pyiceberg.yaml` or `PYICEBERG_CATALOG__<NAME>__URI`.

    Raises:
        SettingsError: The configuration cannot be read.
    """
    try:
        found = Config().get_catalog_config(name)
    except Exception as error:  # noqa: BLE001 - YAML has errors of its own.
        raise SettingsError(
            what=f"PyIceberg's configuration cannot be read ({in_short(error)})",
            cure="mend .pyiceberg.yaml, or the PYICEBERG_* variables",
        ) from None  # It would repeat the lines around it, which may hold a secret.
    return {key: str(value) for key, value in found.items()} if found else None
