"""``keyedstate doctor``: whether a job can run here, and what to do where it cannot."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import keyedstate
from keyedstate.cli.checks import (
    Check,
    Status,
    check_backends,
    check_java,
    check_keyedstate,
    check_libraries,
    check_other_plugins,
    check_python,
    check_storage,
    installed_version,
)
from keyedstate.cli.output import Format, console, print_json, shown, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, read_settings
from keyedstate.cli.worker_python import check_worker_python
from keyedstate.errors import KeyedStateError
from keyedstate.options import BACKEND, OPTIONS, Configuration
from keyedstate.plugins import PluginRegistry

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"}

Options = Annotated[
    bool, typer.Option("--options", help="Show every option too, its value and where it is set.")
]


def doctor(config: ConfigFile = None, options: Options = False, format: OutputFormat = Format.table) -> None:
    """Check Python, Java, Spark, the options, backends and storage; exit code 1 if a job cannot run.

    The Python that Spark's workers would run on this machine is checked too.
    """
    configuration, settings, registry = _read(config)
    checks = [
        check_keyedstate(),
        check_python(),
        check_worker_python(_needed_by_workers(registry, settings)),
        check_java(installed_version("pyspark")),
        *check_libraries(sys.version_info[:2]),
        configuration,
        *check_backends(registry, settings),
        *check_other_plugins(registry),
        check_storage(settings),
    ]
    failed = sum(check.status is Status.FAILED for check in checks)
    if format is Format.json:
        print_json(
            {
                "ok": not failed,
                "checks": [asdict(check) for check in checks],
                "options": _options(registry, settings),
            }
        )
    else:
        _print(checks, _options(registry, settings) if options else [], failed)
    raise typer.Exit(1 if failed else 0)


def _read(file: Path | None) -> tuple[Check, Configuration, PluginRegistry]:
    """Return the check of the options, and the options; the defaults where these are wrong."""
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


def _needed_by_workers(registry: PluginRegistry, settings: Configuration) -> dict[str, str]:
    """Return the versions of keyedstate and of the chosen backend, by distribution."""
    found = {"keyedstate": keyedstate.__version__}
    for provider in registry.providers():
        # A module without a distribution has no version.
        if provider.name == settings[BACKEND] and not provider.version.startswith("("):
            found[provider.distribution] = provider.version
    return found


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
                # Without credentials, if it is a URI.
                "value": re.sub(r"//[^/@]*@", "//...@", value).partition("?")[0]
                if isinstance(value, str)
                else value,
                "source": settings.source(option) or "default",
            }
        )
    return rows


def _print(checks: list[Check], options: list[dict[str, Any]], failed: int) -> None:
    out = console()
    for check in checks:
        out.print(f"{check.status.value:<8}", style=_STYLES[check.status], end="")
        out.print(f"{check.name}: {check.detail}")
        if check.way_out:
            out.print(f"{'':<8}{check.way_out}")
    out.print()
    if options:
        rows = [[option["name"], shown(option["value"]), option["source"]] for option in options]
        out.print(table(["option", "value", "set in"], rows))
        out.print()
    if failed:
        out.print(f"{failed} of {len(checks)} checks failed: a job cannot run here.")
    else:
        out.print("A job can run here.")
