"""``keyedstate doctor``: whether a job can run here, and what to do where it cannot."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer

from keyedstate.cli.checks import (
    Check,
    Status,
    check_backends,
    check_java,
    check_libraries,
    check_python,
    check_storage,
    installed_version,
)
from keyedstate.cli.output import Format, console, print_json, shown, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, read_settings
from keyedstate.config import BACKEND, OPTIONS, Configuration
from keyedstate.errors import KeyedStateError
from keyedstate.plugins import PluginRegistry

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"}


def doctor(config: ConfigFile = None, format: OutputFormat = Format.table) -> None:
    """Check Python, Java, Spark, the options, backends and storage; exit code 1 if a job cannot run."""
    configuration, settings, registry = _read(config)
    checks = [
        check_python(),
        check_java(installed_version("pyspark")),
        *check_libraries(sys.version_info[:2]),
        configuration,
        *check_backends(registry, settings),
        check_storage(settings),
    ]
    failed = sum(check.status is Status.FAILED for check in checks)
    options = _options(registry, settings)
    if format is Format.json:
        print_json(
            {
                "ok": not failed,
                "checks": [
                    {
                        "name": check.name,
                        "status": check.status.value,
                        "detail": check.detail,
                        "way_out": check.way_out,
                    }
                    for check in checks
                ],
                "options": options,
            }
        )
    else:
        _print(checks, options, failed)
    raise typer.Exit(1 if failed else 0)


def _read(file: Path | None) -> tuple[Check, Configuration, PluginRegistry]:
    """Return the check of the options, and the options as far as they are right."""
    settings = Configuration()
    registry = PluginRegistry(settings)
    try:
        read = read_settings(file)
        # Values are parsed when they are asked for: a wrong one shows here and not in a job.
        for option in OPTIONS:
            read.get(option)
        settings = read
        registry = PluginRegistry(settings)
        settings.plugin_options(registry.options, settings[BACKEND])
    except KeyedStateError as error:
        return Check("options", Status.FAILED, str(error)), settings, registry
    count = len(settings.to_dict())
    return Check("options", Status.OK, f"{count or 'none'} set, all of them known"), settings, registry


def _options(registry: PluginRegistry, settings: Configuration) -> list[dict[str, Any]]:
    known = [*OPTIONS, *(registry.options().get(settings[BACKEND]) or ())]
    rows: list[dict[str, Any]] = []
    for option in known:
        try:
            value = settings.get(option)
        except KeyedStateError:  # reported by its check
            value = None
        rows.append(
            {
                "name": option.name,
                "value": _without_credentials(value) if isinstance(value, str) else value,
                "source": settings.source(option) or "default",
            }
        )
    return rows


def _without_credentials(value: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", value).partition("?")[0]


def _print(checks: list[Check], options: list[dict[str, Any]], failed: int) -> None:
    out = console()
    for check in checks:
        style = _STYLES[check.status]
        out.print(f"[{style}]{check.status.value:<8}[/{style}]", end="")
        out.print(f"{check.name}: {check.detail}", markup=False, soft_wrap=True)
        if check.way_out:
            out.print(f"{'':<8}{check.way_out}", markup=False, soft_wrap=True)
    out.print()
    rows = [[option["name"], shown(option["value"]), option["source"]] for option in options]
    out.print(table(["option", "value", "set in"], rows))
    out.print()
    if failed:
        out.print(f"{failed} of {len(checks)} checks failed: a job cannot run here.")
    else:
        out.print("A job can run here.")
