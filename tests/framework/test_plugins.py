"""Plugins: found by entry point or registered, chosen by name, refused with errors that help, and called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keyedstate import hooks
from keyedstate.errors import (
    DuplicateProviderError,
    HookApiVersionError,
    InvalidPluginError,
    PluginNotAllowedError,
    UnknownBackendError,
)

HOOKS = [name for name in vars(hooks) if name.startswith("keyedstate_")]


# -- found -----------------------------------------------------------------------------------------


def test_an_installed_plugin_is_found_under_its_entry_points_name(distributions):
    distributions.add("my-backend", "2.3", "mine")
    (provider,) = distributions.registry().providers()
    assert (provider.name, provider.distribution, provider.version) == ("mine", "my-backend", "2.3")


def test_installed_plugins_are_found_in_a_process_of_their_own(distributions):
    """What `pip install` leaves on the path is enough: nothing has to be registered."""
    distributions.add("my-backend", "2.3", "mine")
    script = (
        "import json\n"
        "from keyedstate.options import Configuration\n"
        "from keyedstate.plugins import PluginRegistry\n"
        "registry = PluginRegistry(Configuration({'backend': 'mine'}))\n"
        "found = [str(provider) for provider in registry.providers()]\n"
        "print(json.dumps([registry.choose().name, found]))"
    )
    # The same folder twice, as an editable installation and its build metadata are: one plugin.
    path = os.pathsep.join([str(distributions.folder), str(distributions.folder) + os.sep])
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, found = json.loads(ran.stdout)
    assert chosen == "mine"
    assert found.count("my-backend 2.3") == 1
    assert any(provider.startswith("keyedstate-nested-map ") for provider in found)


def test_finding_plugins_imports_none_of_them(distributions):
    module = distributions.add_source("loud", "1.0", "loud", "raise RuntimeError('imported')")
    assert [provider.name for provider in distributions.registry().providers()] == ["loud"]
    assert module not in sys.modules


def test_the_configured_backend_is_chosen_and_another_by_name(distributions):
    distributions.add("one-dist", "1.0", "one")
    distributions.add("two-dist", "1.0", "two")
    registry = distributions.registry(backend="two")
    assert registry.choose().name == "two"
    assert registry.choose("one").name == "one"
    assert registry.choose().description.summary == "A backend of the tests."


def test_a_plugin_is_loaded_once(distributions):
    distributions.add("one-dist", "1.0", "one")
    registry = distributions.registry(backend="one")
    assert registry.choose() is registry.choose()


# -- registered ------------------------------------------------------------------------------------


def test_a_module_registered_at_run_time_can_be_chosen(distributions):
    (distributions.folder / "my_module.py").write_text(distributions.source("mine"))
    registry = distributions.registry(backend="mine")
    import my_module

    registry.register(my_module)
    registry.register(my_module)
    assert registry.choose().provider.distribution == "my_module"
    assert [str(provider) for provider in registry.providers()] == ["my_module (module)"]


def test_an_object_with_hooks_can_be_registered_as_well(distributions):
    namespace: dict[str, Any] = {}
    exec(distributions.source("mine"), namespace)
    plugin = SimpleNamespace(**{name: namespace[name] for name in HOOKS if name in namespace})
    registry = distributions.registry(backend="mine")
    registry.register(HashableNamespace(plugin))
    assert registry.choose().name == "mine"


class HashableNamespace:
    """pluggy keeps plugins in sets."""

    def __init__(self, namespace: SimpleNamespace) -> None:
        self.__dict__.update(vars(namespace))


def test_the_option_plugins_modules_registers_modules_by_name(distributions):
    (distributions.folder / "my_module.py").write_text(distributions.source("mine"))
    registry = distributions.registry(backend="mine", plugins__modules="my_module, my_module")
    assert registry.choose().name == "mine"


def test_a_module_that_is_installed_and_named_by_the_option_is_one_plugin(distributions):
    module = distributions.add("my-backend", "2.3", "mine")
    registry = distributions.registry(backend="mine", plugins__modules=module)
    assert [str(provider) for provider in registry.providers()] == ["my-backend 2.3"]


def test_a_module_of_the_option_that_cannot_be_imported_is_refused_by_name(distributions):
    with pytest.raises(InvalidPluginError, match=r"'plugins\.modules' names it.*No module named 'nowhere'"):
        distributions.registry(plugins__modules=["nowhere"])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def keyedstate_describe_backend(): raise OSError('no disk')", "failed with OSError: no disk"),
        ("def keyedstate_describe_backend(): return 'mine'", "returned str and not a BackendDescription"),
    ],
)
def test_a_registered_module_that_describes_no_backend_is_refused(distributions, source, reason):
    module = ModuleType("my_module")
    exec(source, vars(module))
    with pytest.raises(InvalidPluginError, match=reason) as caught:
        distributions.registry().register(module)
    assert caught.value.provider == "my_module (module)"


# -- unknown, ambiguous, not allowed ---------------------------------------------------------------


def test_an_unknown_backend_is_answered_with_what_looks_like_it_and_what_there_is(distributions):
    distributions.add("redis-dist", "1.0", "redis")
    distributions.add("sqlite-dist", "1.0", "sqlite")
    with pytest.raises(UnknownBackendError) as caught:
        distributions.registry().choose("sqllite")
    message = str(caught.value)
    assert "unknown state backend 'sqllite'" in message
    assert "Did you mean 'sqlite'?" in message
    assert "Installed: redis, sqlite." in message
    assert "'plugins.modules'" in message
    assert caught.value.installed == ("redis", "sqlite")


def test_a_backend_of_this_project_that_is_not_installed_is_answered_with_its_extra(distributions):
    with pytest.raises(UnknownBackendError) as caught:
        distributions.registry().choose("heap-cow")
    assert "No backend is installed." in str(caught.value)
    assert "pip install 'keyedstate[heap-cow]'" in str(caught.value)


def test_the_error_for_a_misspelt_backend_that_is_not_installed_names_its_extra(distributions):
    distributions.add("redis-dist", "1.0", "redis")
    with pytest.raises(UnknownBackendError) as caught:
        distributions.registry().choose("heap-cwo")
    assert "Did you mean 'heap-cow'? Installed: redis." in str(caught.value)
    assert str(caught.value).endswith("Install heap-cow with `pip install 'keyedstate[heap-cow]'`.")


def test_every_backend_of_this_project_has_an_extra_of_its_name():
    """What the error tells the user to type must exist."""
    from importlib.metadata import metadata

    from keyedstate.plugins import _EXTRAS

    assert set(_EXTRAS) <= set(metadata("keyedstate").get_all("Provides-Extra") or [])


def test_two_distributions_with_one_name_are_refused_with_both_named(distributions):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta", "2.5", "mine")
    with pytest.raises(DuplicateProviderError) as caught:
        distributions.registry(backend="mine").choose()
    assert sorted(caught.value.providers) == ["alpha 1.0", "beta 2.5"]
    assert "alpha 1.0" in str(caught.value) and "beta 2.5" in str(caught.value)
    assert "'plugins.prefer'" in str(caught.value)


@pytest.mark.parametrize("written", ["beta-kit", "beta_kit", "Beta.Kit"])
def test_the_preferred_one_of_two_distributions_wins_however_its_name_is_written(distributions, written):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta-kit", "2.5", "mine")
    backend = distributions.registry(backend="mine", plugins__prefer=written).choose()
    assert backend.provider.distribution == "beta-kit"


def test_preferring_both_of_two_distributions_decides_nothing(distributions):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta", "2.5", "mine")
    with pytest.raises(DuplicateProviderError):
        distributions.registry(backend="mine", plugins__prefer="alpha,beta").choose()


@pytest.mark.parametrize("listed", ["mine", "my-backend", "my_backend"])
def test_the_deny_list_keeps_a_backend_out_by_its_name_or_its_distributions(distributions, listed):
    module = distributions.add("my-backend", "1.0", "mine")
    registry = distributions.registry(backend="mine", plugins__deny=f"other,{listed}")
    with pytest.raises(PluginNotAllowedError, match=rf"'plugins\.deny' contains it \(other, {listed}\)"):
        registry.choose()
    assert module not in sys.modules, "a plugin that is kept out must not even be imported"


def test_the_allow_list_keeps_out_what_it_does_not_contain(distributions):
    distributions.add("one-dist", "1.0", "one")
    distributions.add("two-dist", "1.0", "two")
    registry = distributions.registry(plugins__allow="two-dist")
    assert registry.choose("two").name == "two"
    with pytest.raises(PluginNotAllowedError, match=r"'plugins\.allow' does not contain it"):
        registry.choose("one")


def test_the_deny_list_beats_the_allow_list(distributions):
    distributions.add("one-dist", "1.0", "one")
    with pytest.raises(PluginNotAllowedError, match=r"plugins\.deny"):
        distributions.registry(plugins__allow="one", plugins__deny="one").choose("one")


def test_the_deny_list_decides_between_two_distributions_with_one_name(distributions):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta", "2.5", "mine")
    assert distributions.registry(plugins__deny="alpha").choose("mine").provider.distribution == "beta"


# -- unusable --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook_api", "way_out"), [((0, 0), "Upgrade mine-dist."), ((2, 3), "Upgrade keyedstate.")]
)
def test_a_plugin_for_other_hook_versions_is_refused_with_both_ranges(distributions, hook_api, way_out):
    # It lacks a hook and has one of its own version: neither is what is wrong with it.
    distributions.add(
        "mine-dist",
        "1.0",
        "mine",
        hook_api=hook_api,
        replaced={"keyedstate_create_restore_operation": ""},
        extra="@hookimpl\ndef keyedstate_of_another_version(): pass\n",
    )
    with pytest.raises(HookApiVersionError) as caught:
        distributions.registry(backend="mine").choose()
    assert caught.value.plugin_range == hook_api
    assert caught.value.kernel_range == hooks.HOOK_API
    assert f"{hook_api[0]} to {hook_api[1]}" in str(caught.value)
    assert str(caught.value).endswith(way_out)


def test_a_plugin_that_serves_newer_hook_versions_too_may_have_their_hooks(distributions):
    distributions.add(
        "mine-dist",
        "1.0",
        "mine",
        hook_api=(1, 2),
        extra="@hookimpl\ndef keyedstate_of_version_two(): pass\n",
    )
    assert distributions.registry(backend="mine").choose().name == "mine"


def unmarked(hook: str) -> str:
    return f"def {hook}(context): pass"


INVALID = {
    "an import that fails": ({"extra": "import nowhere"}, "importing it failed with ModuleNotFoundError"),
    "an import that ends the process": ({"extra": "raise SystemExit(3)"}, "failed with SystemExit: 3"),
    "a syntax error": ({"extra": "def ("}, "importing it failed with SyntaxError"),
    "a missing hook": (
        {"replaced": {"keyedstate_create_snapshot_strategy": ""}},
        "lacks the required hook keyedstate_create_snapshot_strategy",
    ),
    "no description": (
        {"replaced": {"keyedstate_describe_backend": ""}},
        "lacks the required hook keyedstate_describe_backend",
    ),
    "a misspelt hook": (
        {"extra": "@hookimpl\ndef keyedstate_create_spil_manager(context): pass"},
        "unknown hook 'keyedstate_create_spil_manager'. Did you mean 'keyedstate_create_spill_manager'",
    ),
    "a hook without marker": (
        {"extra": unmarked("keyedstate_create_spill_manager")},
        "its function keyedstate_create_spill_manager is not marked with @hookimpl",
    ),
    "a hook with a parameter that there is not": (
        {
            "replaced": {
                "keyedstate_create_snapshot_strategy": "def keyedstate_create_snapshot_strategy(disk): pass"
            }
        },
        r"Argument\(s\) {'disk'} are declared in the hookimpl but can not be found in the hookspec",
    ),
    "a description that raises": (
        {"replaced": {"keyedstate_describe_backend": "def keyedstate_describe_backend(): 1 / 0"}},
        "keyedstate_describe_backend failed with ZeroDivisionError",
    ),
    "a description of another type": (
        {"replaced": {"keyedstate_describe_backend": "def keyedstate_describe_backend(): pass"}},
        "returned NoneType and not a BackendDescription",
    ),
    "another name than the entry point's": (
        {"name": "yours"},
        "calls itself 'yours', but is registered as 'mine'",
    ),
    "a hook API version that is no range": ({"hook_api": 1}, "hook_api must be a pair"),
    "a hook API range from back to front": ({"hook_api": (2, 1)}, "hook_api must be a pair"),
    "an option with a foreign prefix": (
        {"options": "integer('checkpoint.size', 1, 'A size.', low=1),"},
        "its option 'checkpoint.size' does not begin with 'mine.'",
    ),
    "serializers that raise": (
        {"extra": "@hookimpl\ndef keyedstate_serializers(): raise OSError('no types')"},
        "OSError: no types",
    ),
    "a serializer of a name that is taken": (
        {"extra": "@hookimpl\ndef keyedstate_serializers(): return {'int64': lambda document: None}"},
        "'int64' is registered by",
    ),
}


@pytest.mark.parametrize(("fault", "reason"), INVALID.values(), ids=INVALID)
def test_a_broken_plugin_is_refused_with_the_reason_however_often_it_is_asked_for(
    distributions, fault, reason
):
    distributions.add("mine-dist", "1.0", "mine", **fault)
    registry = distributions.registry(backend="mine")
    for _ in range(2):
        with pytest.raises(InvalidPluginError, match=reason) as caught:
            registry.choose()
        assert str(caught.value).startswith("the plugin 'mine' of mine-dist 1.0 is unusable: ")
        assert "\n" not in str(caught.value)


def test_a_broken_plugin_hurts_only_those_who_choose_it(distributions):
    distributions.add_source("broken", "1.0", "broken", "raise RuntimeError('boom')")
    distributions.add("mine-dist", "1.0", "mine")
    registry = distributions.registry(backend="mine")
    assert registry.choose().name == "mine"
    refusals = {provider.name: registry.refusal(provider) for provider in registry.providers()}
    assert refusals["mine"] is None
    assert "RuntimeError: boom" in str(refusals["broken"])


def test_a_package_that_a_plugin_imports_is_not_taken_for_a_misspelt_hook(distributions):
    (distributions.folder / "keyedstate_mine_impl.py").write_text("")
    distributions.add("mine-dist", "1.0", "mine", extra="import keyedstate_mine_impl")
    assert distributions.registry(backend="mine").choose().name == "mine"
