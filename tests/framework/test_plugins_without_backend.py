"""Plugins that are no backends: which hooks are enough, who calls them, what is refused with which advice."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import keyedstate.checkpoint.storage.filesystem  # noqa: F401 - where state is read, unknown types are looked for
from keyedstate.errors import DuplicateProviderError, InvalidPluginError, PluginNotAllowedError

HEAD = "from keyedstate.hooks import hookimpl\n\ncalls = []\n\n"
#: A function for each hook that every plugin may have.
HOOKS = {
    "keyedstate_serializers": "def keyedstate_serializers():\n    return {}\n",
    "keyedstate_checkpoint_completed": (
        "def keyedstate_checkpoint_completed(uid, epoch):\n    calls.append(('completed', uid, epoch))\n"
    ),
    "keyedstate_checkpoint_aborted": (
        "def keyedstate_checkpoint_aborted(uid, epoch, reason):\n"
        "    calls.append(('aborted', uid, epoch, reason))\n"
    ),
    "keyedstate_checkpoint_subsumed": (
        "def keyedstate_checkpoint_subsumed(uid, epoch):\n    calls.append(('subsumed', uid, epoch))\n"
    ),
    "keyedstate_checkpoint_storage": "def keyedstate_checkpoint_storage(uri):\n    return None\n",
    "keyedstate_metric_reporter": "def keyedstate_metric_reporter(options):\n    return None\n",
}

each_hook = pytest.mark.parametrize("hook", HOOKS)


def source_of(*hooks: str) -> str:
    return HEAD + "\n".join(f"@hookimpl\n{HOOKS[hook]}" for hook in hooks)


def module_of(source: str, name: str = "my_module") -> ModuleType:
    module = ModuleType(name)
    exec(source, vars(module))
    return module


def write(distributions: Any, name: str, source: str) -> None:
    (distributions.folder / f"{name}.py").write_text(source, encoding="utf-8")


# -- one hook is enough ----------------------------------------------------------------------------


@each_hook
def test_a_module_with_one_hook_for_every_plugin_is_a_plugin(hook, distributions):
    module = module_of(source_of(hook))
    registry = distributions.registry()
    registry.register(module)
    registry.register(module)
    unusable: list[Any] = []
    assert [str(provider) for provider, _ in registry.callers(hook, unusable)] == ["my_module (module)"]
    assert unusable == []


@each_hook
def test_an_installed_plugin_needs_only_one_hook(hook, distributions):
    distributions.add_plugin("my-dist", "1.0", "mine", source_of(hook))
    registry = distributions.registry()
    unusable: list[Any] = []
    assert [provider.name for provider, _ in registry.callers(hook, unusable)] == ["mine"]
    assert unusable == []
    (provider,) = registry.plugins()
    assert registry.hooks_of(provider) == (hook,)


def test_every_plugin_is_notified_of_a_checkpoint(distributions):
    hook = "keyedstate_checkpoint_completed"
    distributions.add_plugin("alone-dist", "1.0", "alone", source_of(hook))
    distributions.add("backend-dist", "1.0", "mine", extra=f"@hookimpl\n{HOOKS[hook]}")
    module = module_of(source_of(hook))
    registry = distributions.registry()
    registry.register(module)
    registry.notify(hook, uid="views", epoch=7, location="/state", data_files=["data/a"])
    for notified in (module, sys.modules["alone_dist_plugin"], sys.modules["backend_dist_plugin"]):
        assert notified.calls[-1] == ("completed", "views", 7)


def test_an_error_in_one_notified_plugin_reaches_the_log_and_no_other_plugin(distributions, caplog):
    hook = "keyedstate_checkpoint_aborted"
    failing = f"{HEAD}@hookimpl\ndef {hook}(uid):\n    raise RuntimeError('no room')\n"
    distributions.add_plugin("a-dist", "1.0", "a", failing)
    distributions.add_plugin("b-dist", "1.0", "b", source_of(hook))
    distributions.registry().notify(hook, uid="views", epoch=7, reason="expired")
    assert sys.modules["b_dist_plugin"].calls == [("aborted", "views", 7, "expired")]
    assert f"the hook {hook} of a-dist 1.0 raised" in caplog.text
    assert "no room" in caplog.text


# -- serializers -----------------------------------------------------------------------------------

SERIALIZERS = HEAD + (
    "from keyedstate import types\n\n"
    "@hookimpl\ndef keyedstate_serializers():\n    return {'%s': restore}\n\n"
    "def restore(document):\n    return types.INT64\n"
)
READS = (
    "import keyedstate.checkpoint.storage.filesystem\n"
    "from keyedstate import types\n"
    "document = {'type': '%s', 'version': 1}\n"
    "print(types.SerializerSnapshot.from_json(document).restore_serializer())\n"
)


def run(distributions: Any, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(distributions.folder), **environment},
        capture_output=True,
        text=True,
    )


def test_a_new_process_finds_the_serializers_of_an_installed_plugin(distributions):
    distributions.add_plugin("alone-dist", "1.0", "alone", SERIALIZERS % "alone-int")
    ran = run(distributions, READS % "alone-int")
    assert ran.stdout == "INT64\n", ran.stderr


def test_a_new_process_finds_the_serializers_of_a_backend_that_is_not_chosen(distributions):
    extra = (SERIALIZERS % "backend-int").removeprefix(HEAD)
    distributions.add("backend-dist", "1.0", "mine", extra=extra)
    ran = run(distributions, READS % "backend-int")
    assert ran.stdout == "INT64\n", ran.stderr


def test_a_new_process_finds_the_serializers_of_a_module_of_the_environment(distributions):
    write(distributions, "my_module", SERIALIZERS % "module-int")
    ran = run(distributions, READS % "module-int", KEYEDSTATE_PLUGINS_MODULES="my_module")
    assert ran.stdout == "INT64\n", ran.stderr


def test_a_registry_of_the_process_gives_serializers_before_any_hook_ran(distributions):
    from keyedstate import types

    write(distributions, "my_module", SERIALIZERS % "early-int")
    registry = distributions.registry(plugins__modules="my_module")
    document = {"type": "early-int", "version": 1}
    assert types.SerializerSnapshot.from_json(document).restore_serializer() is types.INT64
    assert registry is not None


def test_an_unknown_type_is_answered_with_the_plugins_that_cannot_be_asked(distributions):
    distributions.add_plugin("broken-dist", "1.0", "broken", "raise RuntimeError('boom')")
    ran = run(distributions, READS % "lost-int")
    last = ran.stderr.splitlines()[-1]
    assert "unknown serializer type 'lost-int'" in last
    assert "Not asked: the plugin 'broken' of broken-dist 1.0 is unusable" in last


# -- what is refused -------------------------------------------------------------------------------

MISSPELT = {
    "a marked function": (
        "@hookimpl\ndef keyedstate_checkpoint_complete(uid): pass\n",
        "unknown hook 'keyedstate_checkpoint_complete'",
        "Did you mean 'keyedstate_checkpoint_completed'",
    ),
    "a function without a mark": (
        "def keyedstate_metrics_reporter(options): pass\n",
        "unknown hook 'keyedstate_metrics_reporter'",
        "Did you mean 'keyedstate_metric_reporter'",
    ),
    "a marked function whose prefix is misspelt": (
        "@hookimpl\ndef keyedstat_serializers(): return {}\n",
        "unknown hook 'keyedstat_serializers'",
        "Did you mean 'keyedstate_serializers'",
    ),
    "the description of a backend": (
        "@hookimpl\ndef keyedstate_describe_bakend(): pass\n",
        "unknown hook 'keyedstate_describe_bakend'",
        "Did you mean 'keyedstate_describe_backend'",
    ),
}
each_misspelling = pytest.mark.parametrize(("source", "unknown", "meant"), MISSPELT.values(), ids=MISSPELT)


@each_misspelling
def test_a_misspelt_hook_of_a_registered_module_is_named(source, unknown, meant, distributions):
    with pytest.raises(InvalidPluginError) as caught:
        distributions.registry().register(module_of(HEAD + source))
    message = str(caught.value)
    assert unknown in message and meant in message
    assert message.endswith("Repair it, or take it out of the option 'plugins.modules'.")
    assert "?." not in message


@each_misspelling
def test_a_misspelt_hook_is_named_also_with_a_right_one(source, unknown, meant, distributions):
    text = source_of("keyedstate_checkpoint_storage") + "\n" + source
    with pytest.raises(InvalidPluginError, match=unknown):
        distributions.registry().register(module_of(text))


@each_misspelling
def test_a_misspelt_hook_of_an_installed_plugin_is_logged(source, unknown, meant, distributions, caplog):
    distributions.add_plugin("my-dist", "1.0", "mine", HEAD + source)
    registry = distributions.registry()
    for _ in range(2):
        registry.notify("keyedstate_checkpoint_subsumed", uid="views", epoch=1)
    (record,) = caplog.records
    assert unknown in record.getMessage() and meant in record.getMessage()
    assert record.getMessage().endswith("Repair or uninstall it.")


def test_a_misspelt_description_of_an_installed_backend_is_named(distributions):
    misspelt = distributions.source("mine").replace("describe_backend", "describe_bakend")
    distributions.add_source("my-dist", "1.0", "mine", misspelt)
    with pytest.raises(InvalidPluginError, match="unknown hook 'keyedstate_describe_bakend'"):
        distributions.registry(backend="mine").choose()


def test_a_misspelt_required_hook_is_named_and_not_called_missing(distributions):
    misspelt = distributions.source("mine").replace("create_state_table", "create_state_tabel")
    distributions.add_source("my-dist", "1.0", "mine", misspelt)
    with pytest.raises(InvalidPluginError, match="Did you mean 'keyedstate_create_state_table'"):
        distributions.registry(backend="mine").choose()


@pytest.mark.parametrize("source", ["", "def views(): pass\n", "import keyedstate.hooks\n"])
def test_a_module_without_any_hook_is_refused_with_what_a_hook_is(source, distributions):
    with pytest.raises(InvalidPluginError, match=r"it has no hook.*@hookimpl") as caught:
        distributions.registry().register(module_of(source))
    assert "describe_backend" not in str(caught.value)


def test_a_module_with_hooks_of_a_backend_and_no_description_is_refused(distributions):
    source = distributions.source("mine", replaced={"keyedstate_describe_backend": ""})
    with pytest.raises(InvalidPluginError, match="lacks the required hook keyedstate_describe_backend"):
        distributions.registry().register(module_of(source))


def test_a_backend_in_the_group_of_other_plugins_is_refused_with_its_group(distributions):
    distributions.add_plugin("my-dist", "1.0", "mine", distributions.source("mine"))
    registry = distributions.registry()
    (provider,) = registry.plugins()
    assert "belongs to the group 'keyedstate.backends'" in str(registry.refusal(provider))


def test_a_plugin_that_is_kept_out_is_not_called_a_backend(distributions):
    distributions.add_plugin("my-dist", "1.0", "mine", source_of("keyedstate_metric_reporter"))
    registry = distributions.registry(plugins__deny="mine")
    (provider,) = registry.plugins()
    refusal = registry.refusal(provider)
    assert isinstance(refusal, PluginNotAllowedError)
    assert str(refusal).startswith("the plugin 'mine' may not be used:")
    assert str(refusal).endswith("Change that list.")


# -- two of one name -------------------------------------------------------------------------------


def test_two_modules_of_one_backend_name_get_advice_for_modules(distributions):
    for name in ("alpha", "beta"):
        write(distributions, name, distributions.source("mine"))
    modules = {"backend": "mine", "plugins__modules": "alpha,beta"}
    with pytest.raises(DuplicateProviderError) as caught:
        distributions.registry(**modules).choose()
    message = str(caught.value)
    assert "alpha (module) and by beta (module)" in message
    assert "Take all but one out of the option 'plugins.modules', or put the name of the one" in message
    assert "ninstall" not in message and "distribution" not in message
    preferred = distributions.registry(**modules, plugins__prefer="beta").choose()
    assert preferred.provider.distribution == "beta"


def test_a_module_and_a_distribution_of_one_name_get_advice_for_both(distributions):
    distributions.add("my-dist", "1.0", "mine")
    write(distributions, "beta", distributions.source("mine"))
    with pytest.raises(DuplicateProviderError) as caught:
        distributions.registry(backend="mine", plugins__modules="beta").choose()
    assert "Uninstall one or take it out of the option 'plugins.modules'" in str(caught.value)
