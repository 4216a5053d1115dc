"""Options: every source, their precedence, and mistakes that are named with the place they were made in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keyedstate import config
from keyedstate.config import ConfigOption
from keyedstate.errors import ConfigError, InvalidOptionError, MissingOptionError, UnknownOptionError
from keyedstate.options import (
    BACKEND,
    CHECKPOINT_COMPRESSION,
    CHECKPOINT_DIR,
    CHECKPOINT_RETAINED,
    MAX_PARALLELISM,
    OPTIONS,
    PARALLELISM,
    PLUGINS_DENY,
    Configuration,
)

SIZE = config.integer("mine.page-size", 64, "Entries of a page.", low=1)
CODEC = config.choice("mine.codec", "raw", ("raw", "zip"), "How pages are kept.")


def installed() -> Mapping[str, tuple[ConfigOption[Any], ...] | None]:
    return {"mine": (SIZE, CODEC), "plain": (), "broken": None}


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "keyedstate.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# -- where options are set -------------------------------------------------------------------------


def test_without_any_setting_the_defaults_hold():
    settings = Configuration()
    assert settings[BACKEND] == "heap-cow"
    assert settings[PLUGINS_DENY] == ()
    assert settings.get(PARALLELISM) is None
    assert settings.source(BACKEND) is None


def test_an_option_is_read_from_each_source_with_its_type(toml):
    file = toml(
        "[keyedstate]\nbackend = 'nested-map'\nparallelism = 3\nplugins.deny = ['a', 'b']\n"
        "checkpoint.compression = 'lz4'\n"
    )
    for settings in (
        Configuration(
            {
                "backend": "nested-map",
                "parallelism": 3,
                "plugins.deny": ("a", "b"),
                "checkpoint.compression": "lz4",
            }
        ),
        Configuration(
            spark={
                "spark.keyedstate.backend": "nested-map",
                "spark.keyedstate.parallelism": "3",
                "spark.keyedstate.plugins.deny": "a, b",
                "spark.keyedstate.checkpoint.compression": "lz4",
            }
        ),
        Configuration(
            environ={
                "KEYEDSTATE_BACKEND": " nested-map ",
                "KEYEDSTATE_PARALLELISM": " 3 ",
                "KEYEDSTATE_PLUGINS_DENY": "a,b,",
                "KEYEDSTATE_CHECKPOINT_COMPRESSION": " lz4 ",
            }
        ),
        Configuration(toml=file),
    ):
        assert settings[BACKEND] == "nested-map"
        assert settings[PARALLELISM] == 3
        assert settings[PLUGINS_DENY] == ("a", "b")
        assert settings[CHECKPOINT_COMPRESSION] == "lz4"


def test_dots_and_dashes_of_a_name_are_underscores_in_the_environment():
    settings = Configuration(
        environ={"KEYEDSTATE_MAX_PARALLELISM": "256", "KEYEDSTATE_CHECKPOINT_DIR": "/data"}
    )
    assert settings[MAX_PARALLELISM] == 256
    assert settings[CHECKPOINT_DIR] == "/data"


def test_a_toml_file_may_nest_its_tables_or_dot_its_keys(toml):
    nested = Configuration(toml=toml("[keyedstate.checkpoint]\ndir = '/a'\nretained = 5\n"))
    dotted = Configuration(toml=toml("[keyedstate]\ncheckpoint.dir = '/a'\n'checkpoint.retained' = 5\n"))
    assert nested.to_dict() == dotted.to_dict() == {"checkpoint.dir": "/a", "checkpoint.retained": 5}


def test_what_is_not_ours_is_left_alone(toml):
    settings = Configuration(
        spark={"spark.app.name": "x", "spark.keyedstateful": "y"},
        environ={
            "PATH": "/bin",
            "KEYEDSTATE_TEST_BACKEND": "heap-cow",
            "KEYEDSTATE_HEAP_COW_PURE": "1",
            "KEYEDSTATE_PURE": "1",
            "KEYEDSTATE_REQUIRE_COMPILED": "1",
        },
        toml=toml("[other]\nbackend = 'x'\n[keyedstate]\n"),
    )
    assert settings.to_dict() == {}
    assert settings.plugin_options(installed, "plain") == {}


SOURCES = ["file", "environment", "Spark configuration", "call"]


@pytest.mark.parametrize("highest", range(4), ids=SOURCES)
def test_a_call_beats_spark_beats_the_environment_beats_the_file(highest, toml):
    """Also for an option of a plugin, which is known only after the sources were read."""
    given = [
        {"toml": toml("[keyedstate]\nbackend = 'file'\nmine.page-size = 1\n")},
        {"environ": {"KEYEDSTATE_BACKEND": "environment", "KEYEDSTATE_MINE_PAGE_SIZE": "2"}},
        {"spark": {"spark.keyedstate.backend": "spark", "spark.keyedstate.mine.page-size": "3"}},
        {"explicit": {"backend": "call", "mine.page-size": 4}},
    ]
    arguments: dict[str, Any] = {}
    for source in given[: highest + 1]:
        arguments |= source
    settings = Configuration(**arguments)
    assert settings[BACKEND] == ["file", "environment", "spark", "call"][highest]
    assert settings.plugin_options(installed, "mine")["mine.page-size"] == highest + 1
    source = settings.source(BACKEND)
    assert source is not None and source.startswith(SOURCES[highest])


def test_the_settings_that_are_sent_to_a_task_are_read_there_as_they_were(toml):
    sent = Configuration(
        {"backend": "mine"},
        spark={"spark.keyedstate.checkpoint.retained": "4"},
        environ={"KEYEDSTATE_MINE_PAGE_SIZE": "128"},
        toml=toml("[keyedstate]\nmine.codec = 'zip'\n"),
    )
    sent.plugin_options(installed, "mine")
    received = Configuration(sent.to_dict())
    assert received[BACKEND] == "mine"
    assert received[CHECKPOINT_RETAINED] == 4
    assert received.plugin_options(installed, "mine") == {"mine.page-size": 128, "mine.codec": "zip"}


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "key", "source", "closest"),
    [
        ({"explicit": {"bakend": "x"}}, "bakend", "call", "backend"),
        (
            {"spark": {"spark.keyedstate.checkpoint.directory": "x"}},
            "spark.keyedstate.checkpoint.directory",
            "Spark configuration",
            "spark.keyedstate.checkpoint.dir",
        ),
        ({"explicit": {"plugins.alow": ["x"]}}, "plugins.alow", "call", "plugins.allow"),
        ({"explicit": {"backend.size": 1}}, "backend.size", "call", "backend"),
    ],
)
def test_a_misspelt_option_is_refused_at_once_with_the_closest_name(arguments, key, source, closest):
    with pytest.raises(UnknownOptionError) as caught:
        Configuration(**arguments)
    assert (caught.value.key, caught.value.source) == (key, source)
    assert f"unknown option {key!r} in the {source}. Did you mean {closest!r}" in str(caught.value)


def test_a_misspelt_option_in_a_file_is_refused_with_the_files_name(toml):
    path = toml("[keyedstate]\nparalelism = 4\n")
    with pytest.raises(UnknownOptionError, match="Did you mean 'parallelism'") as caught:
        Configuration(toml=path)
    assert caught.value.source == f"file {path}"


@pytest.mark.parametrize(
    ("arguments", "key", "closest"),
    [
        ({"explicit": {"mine.page-sise": 1}}, "mine.page-sise", "mine.page-size"),
        ({"explicit": {"nobody.page-size": 1}}, "nobody.page-size", "mine.page-size"),
        (
            {"spark": {"spark.keyedstate.mine.codecs": "x"}},
            "spark.keyedstate.mine.codecs",
            "spark.keyedstate.mine.codec",
        ),
        ({"environ": {"KEYEDSTATE_BAKEND": "x"}}, "KEYEDSTATE_BAKEND", "KEYEDSTATE_BACKEND"),
        ({"environ": {"KEYEDSTATE_MINE_CODEK": "x"}}, "KEYEDSTATE_MINE_CODEK", "KEYEDSTATE_MINE_CODEC"),
    ],
)
def test_a_name_that_no_installed_plugin_has_is_refused_when_the_plugins_are_known(arguments, key, closest):
    settings = Configuration(**arguments)
    with pytest.raises(UnknownOptionError, match=f"Did you mean '{closest}'") as caught:
        settings.plugin_options(installed, "plain")
    assert caught.value.key == key


def test_a_name_that_looks_like_none_is_answered_with_all_names():
    with pytest.raises(UnknownOptionError, match=r"Known options: backend, checkpoint\.[a-z.-]+, "):
        Configuration({"zzzzzzzzzzz": "x"})


def test_switching_the_backend_leaves_the_options_of_the_other_valid():
    settings = Configuration({"mine.page-size": 8}, environ={"KEYEDSTATE_MINE_CODEC": "zip"})
    assert settings.plugin_options(installed, "plain") == {}
    assert settings.plugin_options(installed, "mine") == {"mine.page-size": 8, "mine.codec": "zip"}


def test_options_of_a_plugin_that_cannot_be_loaded_are_not_called_unknown():
    """No plugin knows its options, and the chosen backend is another."""
    settings = Configuration({"broken.size": 8}, environ={"KEYEDSTATE_BROKEN_SIZE": "1"})
    assert settings.plugin_options(installed, "mine") == {"mine.page-size": 64, "mine.codec": "raw"}


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (PARALLELISM, "many", "a whole number from 1 to 32768"),
        (PARALLELISM, "0", "a whole number from 1 to 32768"),
        (PARALLELISM, 32_769, "a whole number from 1 to 32768"),
        (PARALLELISM, 2.5, "a whole number from 1 to 32768"),
        (PARALLELISM, True, "a whole number from 1 to 32768"),
        (PARALLELISM, None, "a whole number from 1 to 32768"),
        (CHECKPOINT_RETAINED, 1, "a whole number of at least 2"),
        (CHECKPOINT_COMPRESSION, "gzip", "one of zstd, lz4, none"),
        (CHECKPOINT_COMPRESSION, ["zstd"], "one of zstd, lz4, none"),
        (CHECKPOINT_DIR, "  ", "a path or a URI such as s3://bucket/folder"),
        (CHECKPOINT_DIR, 7, "a path or a URI such as s3://bucket/folder"),
        (PLUGINS_DENY, 7, "a list of names with commas between them"),
        (PLUGINS_DENY, [7], "a list of names with commas between them"),
    ],
)
def test_a_value_that_an_option_cannot_take_is_named_with_what_it_can(option, value, expected):
    settings = Configuration({option.name: value})
    with pytest.raises(InvalidOptionError) as caught:
        settings[option]
    assert (caught.value.key, caught.value.value) == (option.name, value)
    assert (
        str(caught.value) == f"option {option.name!r} has the value {value!r} in the call; give {expected}."
    )


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [("10 min", 600_000), ("500", 500), (500, 500), (dt.timedelta(seconds=1), 1000)],
)
def test_a_duration_has_a_unit_or_is_in_milliseconds(value, milliseconds):
    pause = config.duration("pause.of", 0, "How long to wait.")
    assert Configuration({"pause.of": value})[pause] == milliseconds


@pytest.mark.parametrize("value", ["10 parsecs", "", None, 2.5, "99 ms"])
def test_what_is_no_duration_or_too_short_is_refused(value):
    pause = config.duration("pause.of", 100, "How long to wait.", low_ms=100)
    with pytest.raises(InvalidOptionError, match="give a duration of at least 100 ms, such as '10 min'"):
        Configuration({"pause.of": value})[pause]


@pytest.mark.parametrize(("value", "expected"), [(0, 0.0), ("0.75", 0.75), (1, 1.0), (0.5, 0.5)])
def test_a_fraction_is_between_0_and_1(value, expected):
    share = config.fraction("share.of", 0.5, "How much.")
    assert share.parse(value) == expected


@pytest.mark.parametrize("value", [-0.01, "1.01", "nan", True, "half", None])
def test_what_is_no_fraction_is_refused(value):
    with pytest.raises(ValueError):
        config.fraction("share.of", 0.5, "How much.").parse(value)


def test_a_wrong_value_is_named_by_the_key_that_the_user_wrote():
    settings = Configuration(environ={"KEYEDSTATE_MINE_PAGE_SIZE": "big"})
    with pytest.raises(InvalidOptionError, match=r"'KEYEDSTATE_MINE_PAGE_SIZE' .* in the environment; give"):
        settings.plugin_options(installed, "mine")


def test_an_option_without_default_that_is_needed_is_asked_for_by_its_spark_name():
    with pytest.raises(MissingOptionError, match=r"'spark\.keyedstate\.checkpoint\.dir' is needed") as caught:
        Configuration()[CHECKPOINT_DIR]
    assert CHECKPOINT_DIR.text in str(caught.value)
    assert "--conf spark.keyedstate.checkpoint.dir=..." in str(caught.value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_default_of_an_option_is_a_value_that_it_takes(option):
    assert option.default is None or option.parse(option.default) == option.default


# -- files -----------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file or directory"):
        Configuration(toml=tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "text", ["[keyedstate\n", "[keyedstate]\nbackend = \n", "[keyedstate]\nbackend = 'ä"]
)
def test_a_file_that_is_not_toml_is_refused(toml, text):
    with pytest.raises(ConfigError, match=r"keyedstate\.toml is not valid TOML: .*\(at .*\)\. Correct"):
        Configuration(toml=toml(text))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe[keyedstate]")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Configuration(toml=path)


@pytest.mark.parametrize("text", ["", "backend = 'x'\n", "keyedstate = 'x'\n"])
def test_a_file_without_our_table_is_refused(toml, text):
    with pytest.raises(ConfigError, match=r"has no table \[keyedstate\]"):
        Configuration(toml=toml(text))


@pytest.mark.parametrize(("value", "on"), [("true", True), (" False ", False), (True, True), (False, False)])
def test_a_switch_is_true_or_false(value, on):
    switch = config.boolean("switch.of", False, "What it does.")
    assert switch.parse(value) is on
    assert switch.expected == "true or false" and switch.default is False


@pytest.mark.parametrize("value", ["yes", "1", 1, 0, "", None])
def test_what_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ValueError):
        config.boolean("switch.of", False, "What it does.").parse(value)
