"""One value for each setting, from the place that counts most; what is not understood is refused where it stands."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.config import DECLARATIONS, Settings, SettingSource, find_file, resolve, variable_of
from statebed.errors import InputError, SecretInUrlError, UnknownSchemeError, UnknownSettingError
from statebed.present.units import binary_size
from statebed.protocol.retention import Retention
from statebed.quantities import duration_text, parse_duration
from statebed.state.memory.budget import VARIABLE

NOWHERE: Mapping[str, str] = {}


def settled(
    folder: Path,
    keywords: Mapping[str, object] | None = None,
    *,
    spark: Mapping[str, str] = NOWHERE,
    environ: Mapping[str, str] = NOWHERE,
    file: str | None = None,
) -> Settings:
    if file is not None:
        (folder / "statebed.toml").write_text(file)
    return resolve(keywords or {}, spark_conf=spark, environ=environ, folder=folder)


def test_without_anything_given_every_setting_has_its_default(tmp_path: Path) -> None:
    found = settled(tmp_path)
    assert dataclasses.replace(found, state="statebed-state") == Settings()
    assert found.state == str(tmp_path / "statebed-state")
    assert {found.place_of(name).source for name in DECLARATIONS} == {SettingSource.DEFAULT}


def test_keyword_goes_before_spark_before_environment_before_file(tmp_path: Path) -> None:
    places = {
        "keywords": {"attempts": 5},
        "spark": {"spark.statebed.attempts": "6", "spark.executor.cores": "9"},
        "environ": {"STATEBED_ATTEMPTS": "7", "PATH": "/bin"},
        "file": "attempts = 8",
    }
    found = []
    while places:
        settings = settled(tmp_path, **places)  # type: ignore[arg-type]  # each is of its own type
        found.append((settings.attempts, settings.place_of("attempts").source))
        del places[next(iter(places))]
    (tmp_path / "statebed.toml").unlink()
    assert found == [
        (5, SettingSource.KEYWORD),
        (6, SettingSource.SPARK_CONF),
        (7, SettingSource.ENVIRONMENT),
        (8, SettingSource.FILE),
    ]
    assert settled(tmp_path).attempts == 3


def test_a_variable_of_a_process_is_no_setting_of_a_job(tmp_path: Path) -> None:
    assert settled(tmp_path, environ={"STATEBED_COMPILED": "off"}) == settled(tmp_path)
    with pytest.raises(UnknownSettingError, match="compiled"):
        settled(tmp_path, {"compiled": "off"})


def test_a_keyword_that_is_none_and_an_empty_variable_say_nothing(tmp_path: Path) -> None:
    found = settled(tmp_path, {"memory": None}, environ={"STATEBED_MEMORY": "", "STATEBED_ATTEMPTS": " "})
    assert (found.memory, found.attempts) == (None, 3)


def test_values_are_typed_wherever_they_come_from(tmp_path: Path) -> None:
    found = settled(
        tmp_path,
        {"memory": 3 << 30, "idle_after": dt.timedelta(seconds=2)},
        spark={"spark.statebed.cache_share": "25%", "spark.statebed.parallelism": " 12 "},
        environ={"STATEBED_READER_GRACE": "1 hour 30 minutes", "STATEBED_COMPACTION_BYTES": "512m"},
        file='retained_epochs = 40\ncache_limit = "5 GB"\nretained_age = "2 days"\n',
    )
    assert (found.memory, found.idle_after) == (3 << 30, dt.timedelta(seconds=2))
    assert (found.cache_share, found.parallelism) == (0.25, 12)
    assert (found.reader_grace, found.compaction_bytes) == (dt.timedelta(minutes=90), 512 << 20)
    assert (found.retained_epochs, found.cache_limit) == (40, 5 << 30)
    assert found.retention == Retention(epochs=40, max_age="2 days", reader_grace="90 minutes")


@pytest.mark.parametrize(
    "given",
    [
        {"keywords": {"memory_shares": {"joined": "40%", "totals.groups": 0.1}}},
        {"spark": {"spark.statebed.memory_shares": "joined=40%, totals.groups=10%"}},
        {"environ": {"STATEBED_MEMORY_SHARES": "joined = 0.4,totals.groups=10 %"}},
        {"file": '[memory_shares]\njoined = "40%"\ntotals.groups = 0.1\n'},
    ],
    ids=["keyword", "Spark", "environment", "file"],
)
def test_shares_of_memory_are_read_from_every_place(tmp_path: Path, given: dict[str, Any]) -> None:
    found = settled(tmp_path, **given)
    assert found.memory_shares == {"joined": 0.4, "totals.groups": 0.1}
    assert DECLARATIONS["memory_shares"].shown(found.memory_shares) == "joined=40%, totals.groups=10%"


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "a word for a number": ({"attempts": "many"}, "expected a whole number, got 'many'"),
    "a number below the least": ({"attempts": 0}, "must be from 1 to 100"),
    "true for a number": ({"attempts": True}, "expected a whole number"),
    "half a number": ({"parallelism": 2.5}, "expected a whole number"),
    "a size without number": ({"memory": "lots"}, "'lots' is not a number of bytes"),
    "no size at all": ({"memory": 0}, "a size must be at least 1 byte, got '0'"),
    "a list for a size": ({"memory": [1]}, "expected a size"),
    "a cache too small to hold anything": ({"cache_limit": "5k"}, "must be at least 1 MiB"),
    "a duration without unit": ({"idle_after": 5}, "add a unit"),
    "a duration of months": ({"reader_grace": "1 month"}, "month"),
    "a negative duration": ({"reader_grace": "-1 second"}, "must be at least 0 seconds"),
    "more than the whole": ({"cache_share": 1.5}, "expected a share"),
    "a share below nothing": ({"cache_share": "-5%"}, "expected a share"),
    "shares beyond the whole": ({"memory_shares": {"a": "70%", "b": "40%"}}, "add up to 110%"),
    "a share of nothing": ({"memory_shares": {"a": 0}}, "must be greater than 0"),
    "a share without name": ({"memory_shares": "40%"}, "expected shares by name"),
    "a share of text": ({"memory_shares": {"a": "much"}}, "a: expected a share"),
    "a list of shares": ({"memory_shares": ["a"]}, "expected shares by name"),
    "an empty folder": ({"cache_folder": " "}, "expected a folder"),
    "a number for a folder": ({"state": 3}, "expected a folder"),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_value_that_cannot_be_is_refused_with_the_place_where_it_stands(tmp_path: Path, case: str) -> None:
    keywords, words = WRONG[case]
    with pytest.raises(InputError) as caught:
        settled(tmp_path, keywords)
    assert words in str(caught.value)
    assert f"keyword {next(iter(keywords))}=" in caught.value.where
    assert caught.value.fix


UNKNOWN = {
    "keyword": ({"keywords": {"paralelism": 3}}, "keyword paralelism="),
    "Spark": ({"spark": {"spark.statebed.paralelism": "3"}}, "Spark configuration spark.statebed.paralelism"),
    "environment": ({"environ": {"STATEBED_PARALELISM": "3"}}, "environment STATEBED_PARALELISM"),
    "file": ({"file": "paralelism = 3"}, "paralelism in "),
}


@pytest.mark.parametrize("where", UNKNOWN, ids=str)
def test_an_unknown_setting_is_an_error_that_names_its_place_and_near_matches(tmp_path: Path, where: str) -> None:
    arguments, place = UNKNOWN[where]
    with pytest.raises(UnknownSettingError) as caught:
        settled(tmp_path, **arguments)  # type: ignore[arg-type]  # each is of its own type
    assert place in caught.value.where
    assert "'parallelism'" in caught.value.fix


def test_an_unknown_setting_is_found_even_where_another_place_gives_all(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError):
        settled(tmp_path, {"memory": "1g"}, file='[job]\nmemory = "2g"')


def test_a_name_like_no_other_gets_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError) as caught:
        settled(tmp_path, {"zzz": 1})
    assert "did you mean" not in caught.value.fix


def test_the_file_is_looked_for_upwards_and_the_nearest_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "statebed.toml").write_text('attempts = 7\nstate = "kept/here"\ncache_folder = "cache"')
    assert find_file(inner) == tmp_path / "statebed.toml"
    found = settled(inner)
    assert found.attempts == 7
    # Relative to the file that says it, wherever the program is started.
    assert found.state == str(tmp_path / "kept" / "here")
    assert found.cache_folder == str(tmp_path / "cache")
    (tmp_path / "a" / "statebed.toml").write_text("collect_every = 2")
    assert (settled(inner).attempts, settled(inner).collect_every) == (3, 2)


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2") as caught:
        settled(tmp_path, file="attempts = 3\nmemory = 2g\n")
    assert caught.value.where == str(tmp_path / "statebed.toml")


def test_places_on_this_machine_become_absolute_and_urls_stay(tmp_path: Path) -> None:
    assert settled(tmp_path, {"state": Path("x")}).state == str(tmp_path / "x")
    assert settled(tmp_path, {"state": "s3://bucket/state"}).state == "s3://bucket/state"
    assert settled(tmp_path, {"cache_folder": "~/fast"}).cache_folder == "~/fast"  # each host has its own home
    assert settled(tmp_path, {"state": f"file:{tmp_path}/x"}).state == str(tmp_path / "x")  # as Spark writes URLs


@pytest.mark.parametrize("url", ["s3:/bucket/state", "dbfs:/state", "gs:bucket"])
def test_a_url_that_lacks_a_slash_is_no_folder_beside_the_program(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError, match="a URL of"):
        settled(tmp_path, {"state": url})


@pytest.mark.parametrize("url", ["s3://user:hunter2@bucket/state", "s3://bucket/state?secret=hunter2"])
def test_a_secret_in_the_url_is_refused_and_never_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(SecretInUrlError) as caught:
        settled(tmp_path, environ={"STATEBED_STATE": url})
    assert "environment STATEBED_STATE" in caught.value.where
    assert "AWS_ACCESS_KEY_ID" in caught.value.fix
    assert "hunter2" not in str(caught.value)


def test_a_url_that_no_store_serves_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        settled(tmp_path, spark={"spark.statebed.state": "ftp://host/x"})
    assert "spark.statebed.state" in caught.value.where


def test_the_engine_alone_reads_the_same_variable() -> None:
    assert variable_of("memory") == VARIABLE


def test_every_setting_says_what_it_means_and_what_happens_without_it() -> None:
    for name, declared in DECLARATIONS.items():
        assert declared.text
        assert declared.shown(declared.default), name
        assert (declared.default is None) == bool(declared.otherwise), name
        if declared.default is not None and not declared.kind.is_place:
            assert declared.kind.parse(declared.default) == declared.default, name


@given(st.integers(0, 10**15))
def test_a_duration_is_shown_as_it_is_read(microseconds: int) -> None:
    assert parse_duration(duration_text(microseconds)) == microseconds


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(5, "5 bytes"), (1 << 10, "1 KiB"), (1536 << 20, "1.5 GiB"), (1023 << 20, "1023 MiB"), (3 << 40, "3 TiB")],
)
def test_a_size_is_shown_in_words(nbytes: int, text: str) -> None:
    assert binary_size(nbytes) == text
