"""``keyedstate plugins``, ``--version``, and how errors of any command look."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import keyedstate
from keyedstate.backend import Capability


def listed(output: str) -> dict[str, dict[str, object]]:
    return {plugin["name"]: plugin for plugin in json.loads(output)}


def test_plugins_are_listed_with_what_a_script_wants_to_know(invoke, distributions):
    distributions.add("my-backend", "2.3", "mine")
    ran = invoke("plugins", "list", "--format", "json")
    assert ran.returncode == 0
    assert ran.stderr == ""
    mine = listed(ran.stdout)["mine"]
    assert (mine["distribution"], mine["version"]) == ("my-backend", "2.3")
    assert mine["usable"] is True and mine["refusal"] is None
    assert mine["hook_api"] == [1, 1]
    assert listed(ran.stdout)["nested-map"]["usable"] is True


def test_plugins_are_listed_for_people_with_the_chosen_one_marked(invoke, distributions):
    distributions.add("my-backend", "2.3", "mine")
    ran = invoke("plugins", "list")
    assert "nested-map (chosen)" in ran.stdout
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("mine ")]
    assert "my-backend 2.3" in line and "A backend of the tests." in line


BROUGHT = {
    "storage": "def keyedstate_checkpoint_storage(uri): return None",
    "reporter": "def keyedstate_metric_reporter(options): return None",
    "serializers": "def keyedstate_serializers(): return {}",
    "listener": "def keyedstate_checkpoint_completed(uid): pass",
}


@pytest.mark.parametrize(("brought", "hook"), BROUGHT.items(), ids=BROUGHT)
def test_a_plugin_without_a_backend_is_listed_with_what_it_provides(invoke, distributions, brought, hook):
    source = f"from keyedstate.hooks import hookimpl\n@hookimpl\n{hook}\n"
    distributions.add_plugin("my-dist", "2.3", "mine", source)
    (distributions.folder / "my_module.py").write_text(source)
    modules = {"KEYEDSTATE_PLUGINS_MODULES": "my_module"}
    plugins = listed(invoke("plugins", "list", "--format", "json", **modules).stdout)
    for name in ("mine", "my_module"):
        assert plugins[name]["provides"] == [brought]
        assert plugins[name]["usable"] is True
    (line,) = [line for line in invoke("plugins", "list").stdout.splitlines() if line.startswith("mine ")]
    assert brought in line and "my-dist 2.3" in line
    people = invoke("plugins", "show", "mine").stdout
    assert brought in people and hook.split("(")[0].removeprefix("def ") in people


def test_a_backend_is_listed_with_what_else_it_provides(invoke, distributions):
    distributions.add("my-backend", "2.3", "mine", extra=f"@hookimpl\n{BROUGHT['serializers']}")
    mine = listed(invoke("plugins", "list", "--format", "json").stdout)["mine"]
    assert mine["provides"] == ["backend", "serializers"]


def test_a_misspelt_hook_of_a_plugin_without_a_backend_is_listed(invoke, distributions):
    source = "from keyedstate.hooks import hookimpl\n@hookimpl\ndef keyedstate_serializer(): return {}\n"
    distributions.add_plugin("my-dist", "2.3", "mine", source)
    mine = listed(invoke("plugins", "list", "--format", "json").stdout)["mine"]
    assert mine["usable"] is False
    assert "unknown hook 'keyedstate_serializer'. Did you mean 'keyedstate_serializers'" in mine["refusal"]


def test_a_broken_plugin_is_listed_with_the_reason_and_hurts_no_other(run, distributions):
    distributions.add_source("broken-dist", "1.0", "broken", "raise RuntimeError('[red]boom[/red]')")
    plugins = listed(run("plugins", "list", "--format", "json").stdout)
    assert plugins["broken"]["usable"] is False
    assert "RuntimeError: [red]boom[/red]" in plugins["broken"]["refusal"]
    assert plugins["nested-map"]["usable"] is True
    # In the table too, and as text: a message may hold what looks like markup.
    assert "RuntimeError: [red]boom[/red]" in run("plugins", "list").stdout


def test_plugins_of_one_name_are_unusable_until_one_is_preferred(invoke, distributions):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta", "2.5", "mine")

    def usable(**environment):
        plugins = json.loads(invoke("plugins", "list", "--format", "json", **environment).stdout)
        return {plugin["distribution"]: plugin["usable"] for plugin in plugins if plugin["name"] == "mine"}

    assert usable() == {"alpha": False, "beta": False}
    assert usable(KEYEDSTATE_PLUGINS_PREFER="beta") == {"alpha": False, "beta": True}


def test_a_plugin_that_a_list_keeps_out_is_listed_with_that_list(invoke, distributions, tmp_path):
    distributions.add("my-backend", "2.3", "mine")
    file = tmp_path / "keyedstate.toml"
    file.write_text("[keyedstate]\nplugins.deny = ['my-backend']\n")
    plugins = listed(invoke("plugins", "list", "--config", str(file), "--format", "json").stdout)
    assert "'plugins.deny' contains it" in plugins["mine"]["refusal"]


def test_one_plugin_is_shown_with_every_capability_and_option(invoke, distributions):
    distributions.add(
        "my-backend",
        "2.3",
        "mine",
        capabilities="Capability.STATE_KINDS: Level.PARTIAL",
        options="integer('mine.size', 5, 'Entries of a page.', low=1),",
    )
    mine = json.loads(invoke("plugins", "show", "mine", "--format", "json").stdout)
    assert mine["capabilities"].keys() == {capability.value for capability in Capability}
    assert mine["capabilities"]["kinds of state"] == "partial"
    assert mine["capabilities"]["rescaling"] == "never"
    assert mine["options"] == [
        {
            "name": "mine.size",
            "default": 5,
            "expected": "a whole number of at least 1",
            "text": "Entries of a page.",
        }
    ]
    people = invoke("plugins", "show", "mine").stdout
    for text in ("my-backend 2.3", "1 to 1", "kinds of state", "partial", "mine.size", "Entries of a page."):
        assert text in people


def test_a_plugin_of_another_hook_version_is_shown_with_the_refusal(invoke, distributions):
    distributions.add("my-backend", "2.3", "mine", hook_api=(7, 9))
    ran = invoke("plugins", "show", "mine")
    assert ran.returncode == 0
    assert "supports the hook API versions 7 to 9" in ran.stdout


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nested-mop", "keyedstate: unknown state backend 'nested-mop'. Did you mean 'nested-map'?"),
        ("mine", "keyedstate: the backend 'mine' is provided by alpha 1.0 and by beta 2.5."),
    ],
)
def test_a_name_that_decides_nothing_ends_with_one_line_and_status_2(run, distributions, name, error):
    distributions.add("alpha", "1.0", "mine")
    distributions.add("beta", "2.5", "mine")
    ran = run("plugins", "show", name)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(error)
    assert ran.stderr.count("\n") == 1


@pytest.mark.long
def test_a_wrong_configuration_file_ends_with_one_line_and_status_2(run, tmp_path):
    ran = run("plugins", "list", "--config", str(tmp_path / "nowhere.toml"))
    assert ran.returncode == 2
    assert ran.stderr.startswith("keyedstate: the configuration file ")
    assert "Traceback" not in ran.stderr


@pytest.mark.long
def test_a_wrong_argument_ends_with_status_2(run):
    assert run("plugins", "list", "--format", "xml").returncode == 2
    assert run("plugin").returncode == 2


def test_the_version_comes_with_the_plugins_and_loads_none_of_them(run, distributions):
    distributions.add_source("broken-dist", "1.0", "broken", "raise RuntimeError('boom')")
    ran = run("--version")
    assert ran.returncode == 0
    first, *plugins = ran.stdout.splitlines()
    assert first.startswith(f"keyedstate {keyedstate.__version__} ")
    assert "  broken: broken-dist 1.0" in plugins
    assert any(line.startswith("  nested-map: keyedstate-nested-map ") for line in plugins)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["plugins", "list"], ["plugins", "show", "nested-map"], ["doctor"], ["demo", "--help"]],
)
@pytest.mark.slow
def test_a_command_that_does_not_run_spark_does_not_import_it(arguments):
    script = (
        "import sys\n"
        "from keyedstate.cli import main\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('pyspark' in sys.modules or 'pandas' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout != ""
