"""``keyedstate plugins``: what is installed, what it can do, and why one cannot be used."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from keyedstate.backend import Capability
from keyedstate.cli.output import Format, attributes, console, facts, print_json, shown, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, read_settings
from keyedstate.errors import PluginError
from keyedstate.options import BACKEND, Configuration
from keyedstate.plugins import PluginRegistry, Provider

#: What a plugin provides by a hook that every plugin may have.
_BROUGHT = {
    "keyedstate_describe_backend": "backend",
    "keyedstate_serializers": "serializers",
    "keyedstate_checkpoint_storage": "storage",
    "keyedstate_metric_reporter": "reporter",
    "keyedstate_checkpoint_completed": "listener",
    "keyedstate_checkpoint_aborted": "listener",
    "keyedstate_checkpoint_subsumed": "listener",
}


def installed_backends() -> list[str]:
    """Return the names of the installed backends, for completion in a shell."""
    return [provider.name for provider in PluginRegistry(Configuration()).providers()]


app = typer.Typer(
    help="Backends, storages, reporters, serializers: what is installed, and what it can do.",
    no_args_is_help=True,
)


@app.command("list")
def list_plugins(config: ConfigFile = None, format: OutputFormat = Format.table) -> None:
    """List every installed plugin, usable or not, and every module of `plugins.modules`."""
    settings = read_settings(config)
    registry, chosen = PluginRegistry(settings), settings[BACKEND]
    plugins = [describe(registry, provider) for provider in registry.plugins()]
    if format is Format.json:
        print_json(plugins)
        return
    rows = [
        [
            plugin["name"] + " (chosen)" * ("backend" in plugin["provides"] and plugin["name"] == chosen),
            ", ".join(plugin["provides"]),
            f"{plugin['distribution']} {plugin['version']}",
            plugin["build"],
            "yes" if plugin["usable"] else "no",
            plugin["summary"] if plugin["usable"] else plugin["refusal"],
        ]
        for plugin in plugins
    ]
    out = console()
    columns = ["plugin", "provides", "distribution", "build", "usable", "what it is, or why not"]
    out.print(table(columns, rows))
    if not registry.providers():
        out.print("No backend is installed. Install one with `pip install 'keyedstate[heap-cow]'`.")


@app.command("show")
def show_plugin(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The plugin.", autocompletion=installed_backends),
    ],
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Show one plugin: its hooks, capabilities and options, and whether it can be used."""
    registry = PluginRegistry(read_settings(config))
    claimants = [provider for provider in registry.plugins() if provider.name == name]
    # The registry has the right error for none or several.
    provider = claimants[0] if len(claimants) == 1 else registry.choose(name).provider
    plugin = describe(registry, provider)
    if format is Format.json:
        print_json(plugin)
        return
    out = console()
    lines = {
        "plugin": plugin["name"],
        "provides": ", ".join(plugin["provides"]),
        "distribution": f"{plugin['distribution']} {plugin['version']}",
        "usable": "yes" if plugin["usable"] else f"no: {plugin['refusal']}",
        "hook API versions": " to ".join(map(str, plugin["hook_api"] or ())),
        "summary": plugin["summary"],
        "build": plugin["build"],
        "build problem": plugin["build_problem"],
        "hooks": ", ".join(plugin["hooks"]),
    }
    out.print(facts((name, value) for name, value in lines.items() if value))
    if plugin["capabilities"]:
        out.print()
        out.print(table(["capability", "level"], list(plugin["capabilities"].items())))
    if plugin["options"]:
        out.print()
        rows = [
            [option["name"], shown(option["default"]), option["expected"], option["text"]]
            for option in plugin["options"]
        ]
        out.print(table(["option", "default", "values", "what it does"], rows))


def describe(registry: PluginRegistry, provider: Provider) -> dict[str, Any]:
    """Return the description of a plugin as JSON values; without its own part if it cannot be loaded."""
    refusal = refusal_of(registry, provider)
    # Not `refusal`: of two plugins of one name each can be described, though neither can be chosen.
    broken = registry.refusal(provider) is not None
    description = None if broken or not provider.is_backend else registry.load(provider).description
    hooks = () if broken else registry.hooks_of(provider)
    brought = [_BROUGHT[hook] for hook in hooks if hook in _BROUGHT]
    own = {"summary": "", "build": "", "build_problem": "", "hook_api": None}
    plugin: dict[str, Any] = {
        **attributes(provider, "name", "distribution", "version"),
        "provides": list(dict.fromkeys(brought)) or ["backend"] * provider.is_backend,
        "hooks": list(hooks),
        "usable": refusal is None,
        "refusal": None if refusal is None else str(refusal),
        **{name: getattr(description, name, missing) for name, missing in own.items()},
        "capabilities": {},
        "options": [],
    }
    if description is not None:
        plugin["capabilities"] = {each.value: description.level(each).value for each in Capability}
        plugin["options"] = [
            attributes(option, "name", "default", "expected", "text") for option in description.options
        ]
    return plugin


def refusal_of(registry: PluginRegistry, provider: Provider) -> PluginError | None:
    """Return why a plugin would not be used if its name were chosen; None if it would be."""
    refusal = registry.refusal(provider)
    same = sum(other.name == provider.name for other in registry.providers())
    if refusal is not None or not provider.is_backend or same == 1:
        return refusal
    try:
        winner = registry.choose(provider.name).provider
    except PluginError as error:
        return error
    if winner is provider:
        return None
    return PluginError(f"the backend {provider.name!r} is taken from {winner}, which 'plugins.prefer' names.")
