"""Profiles are found by exact name or declared alias, and a bad file is one clear line, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dscalc.errors import DscalcError, InputError, ProfileError, UnknownNameError
from dscalc.specs import store


@pytest.fixture(autouse=True)
def _no_user_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.PROFILES_VARIABLE, raising=False)


def number(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit, "kind": "measured", "source": "a test"}


def profile(**fields: object) -> dict[str, object]:
    plain = {"profile": "gpu", "id": "TEST-1", "vendor": "V", "arch": "A", "peak": {"bf16": number(100, "TFLOP/s")}}
    return {**plain, **fields}


def write(path: Path, data: object) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------------- lookup
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("h100-sxm5-80gb", "H100-SXM5-80GB"),
        ("H100 SXM5 80GB", "H100-SXM5-80GB"),
        ("h100_sxm5_80gb", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("H20", "H20"),
        ("H200", "H200-SXM5-141GB"),
        ("GB200", "GB200"),
        ("B200", "B200-SXM6"),
        ("L40", "L40"),
        ("l40s", "L40S"),
        ("A10", "A10"),
        ("A10G", "A10G"),
        ("RTX4090", "RTX-4090"),
        ("4090", "RTX-4090"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("A100-80GB", "A100-SXM4-80GB"),
        ("A100", "A100"),
        ("V100-32GB", "V100-SXM2-32GB"),
        ("H800", "H800-SXM5"),
        ("A800", "A800-SXM4-80GB"),
        ("TPU v5p", "TPU-v5p"),
        ("TPU-v7(Ironwood)", "TPU-v7-Ironwood"),
        ("MI250X", "MI250X-GCD"),
        ("MI250X (per OAM, 2 GCDs)", "MI250X-OAM"),
        ("A6000", "RTX-A6000"),
    ],
)
def test_names_people_use(typed: str, found: str) -> None:
    resolved = store.load_gpu(typed)
    assert resolved.spec.id == found
    assert (resolved.assumption is None) == (store.fold_name(typed) == store.fold_name(found))


@pytest.mark.parametrize(
    "name",
    [
        "H2",
        "H1000",
        "100",
        "GB",
        "H100-SXM5-80GB-extra",
        "",
        " ",
        "../H20",
        "/etc/passwd",
        "H20.json",
        "x" * 10_000,
        "H\x00",
    ],
)
def test_never_by_a_part_of_a_name(name: str) -> None:
    with pytest.raises((UnknownNameError, InputError)) as error:
        store.load_gpu(name)
    assert len(str(error.value)) < 300


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'H1000'; did you mean .*H100") as error:
        store.load_gpu("H1000")
    assert "H100" in error.value.nearest
    with pytest.raises(UnknownNameError, match=r"unknown cluster 'dgx-h10'; did you mean .*dgx-h100"):
        store.load_cluster("dgx-h10")


def test_a_number_is_a_count_of_gpus() -> None:
    with pytest.raises(InputError) as error:
        store.load_gpu("64")
    assert str(error.value) == "--gpu takes an id; did you mean --gpus 64?"


def test_shipped_lists() -> None:
    assert len(store.gpu_ids()) >= 48
    assert len(store.cluster_ids()) >= 58
    assert store.load_cluster("hgx-h100").spec.id == "dgx-h100"
    assert store.load_cluster("hgx-h100").assumption


# ------------------------------------------------------------------------------------------------------ user profiles
def test_user_profiles_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = {"name": "H100", "assumption": "ours"}
    mine = write(tmp_path / "mine.json", profile(aliases=[alias]))
    assert store.load_gpu("test 1", [mine]).spec.id == "TEST-1"
    assert store.load_gpu("h100", [mine]).assumption == "ours"
    assert store.load_gpu("H100").spec.id == "H100-SXM5-80GB"
    assert "TEST-1" in store.gpu_ids([mine])
    assert "TEST-1" not in store.cluster_ids([mine])
    folder = tmp_path / "site"
    (folder / "gpus").mkdir(parents=True)
    write(folder / "gpus" / "any name.json", profile(id="H100-SXM5-80GB", vendor="site"))
    monkeypatch.setenv(store.PROFILES_VARIABLE, os.pathsep.join(["", str(folder), str(mine)]))
    assert store.load_gpu("H100-SXM5-80GB").spec.vendor == "site"
    assert store.load_gpu("H100").assumption == "ours"
    first = write(tmp_path / "first.json", profile(id="H100-SXM5-80GB", vendor="argument"))
    assert store.load_gpu("H100-SXM5-80GB", [first]).spec.vendor == "argument"
    assert store.gpu_ids([first]).count("H100-SXM5-80GB") == 1


def test_two_files_of_a_folder_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path / "a.json", profile())
    write(tmp_path / "b.json", profile(id="Test_1"))
    with pytest.raises(ProfileError, match=r"b\.json: the name 'Test_1' is already taken by .*a\.json"):
        store.load_gpu("TEST-1", [tmp_path])


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", profile())
    assert "'V'" in repr(store.load_profile_file(path).spec)
    write(path, profile(vendor="Another"))
    assert "'Another'" in repr(store.load_profile_file(path).spec)


# ----------------------------------------------------------------------------------------------------------- bad files
BAD: list[tuple[str, object, str]] = [
    (
        "wrong unit",
        profile(usable_memory=number(80, "GB/s")),
        "usable_memory: 'GB/s' measures bandwidth; expected a size",
    ),
    ("unknown unit", profile(tdp=number(700, "horses")), "tdp: unknown unit 'horses'"),
    (
        "wrong unit inside",
        profile(peak={"bf16": number(989, "GB")}),
        "peak.bf16: 'GB' measures bytes; expected FLOP per",
    ),
    ("nan", '{"profile": "gpu", "id": "x", "value": NaN}', "NaN is not a number a profile may hold"),
    ("infinity", '{"profile": "gpu", "id": "x", "value": -Infinity}', "-Infinity is not a number"),
    ("overflow", json.dumps(profile(tdp=number(1, "W"))).replace('"value": 1,', '"value": 1e999,'), "tdp.value"),
    ("negative", profile(tdp=number(-1, "W")), "tdp.value: Input should be greater than or equal to 0"),
    ("text for a number", profile(tdp=number("700", "W")), "tdp.value: Input should be a valid number"),
    ("bool for a number", profile(tdp=number(True, "W")), "tdp.value"),
    ("bare number", profile(tdp=700), "tdp: Input should be"),
    ("half a GPU", profile(gpus_per_node=number(0.5, "count")), "gpus_per_node: 0.5 is not a whole number"),
    ("no source", profile(tdp={"value": 1, "unit": "W", "kind": "measured"}), "tdp.source: is missing"),
    ("kind", profile(tdp={**number(1, "W"), "kind": "guessed"}), "tdp.kind: Input should be 'datasheet'"),
    ("unknown field", profile(tpd=number(1, "W")), "tpd: is not a field of a profile"),
    ("unknown dtype", profile(peak={"int8": number(1, "TFLOP/s")}), "peak.int8: is not a field"),
    ("missing field", {"profile": "gpu", "id": "x"}, "vendor: is missing (and 1 more)"),
    ("neither kind", {"profile": "cpu"}, 'profile: must be "gpu" or "cluster"'),
    ("list", [1, 2], "holds no JSON object"),
    ("number", "7", "holds no JSON object"),
    ("empty", "", "is not JSON"),
    ("truncated", json.dumps(profile(), indent=1)[:90], ":7: is not JSON"),
    ("duplicate keys", '{"profile": "gpu", "id": "a", "id": "b"}', "the key 'id' stands twice"),
    ("deep", '{"a":' * 50 + "1" + "}" * 50, 'profile: must be "gpu"'),
    ("deep field", json.dumps(profile(notes="@")).replace('"@"', "[" * 40 + "]" * 40), "nested more than 12 deep"),
    ("very deep", "[" * 200_000, "nested more than 12 deep"),
    ("large", " " * (2 * 2**20), "is larger than 1 MiB"),
    ("long number", '{"profile": "gpu", "id": ' + "9" * 5000 + "}", "digits"),
    ("control character", profile(vendor="\x1b[2J"), "vendor: String should match pattern"),
    ("surrogate", '{"profile": "gpu", "id": "\\ud800", "vendor": "v", "arch": "a"}', "id: "),
]


@pytest.mark.parametrize(("data", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_file_is_one_clear_line(tmp_path: Path, data: object, message: str) -> None:
    path = write(tmp_path / "bad.json", data)
    with pytest.raises(ProfileError) as error:
        store.load_profile_file(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 400
    with pytest.raises(DscalcError):
        store.load_gpu("a name nobody has", [path])


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b'{\n"id": "\xff"}')
    with pytest.raises(ProfileError, match=r"bad\.json:2: is not UTF-8"):
        store.load_profile_file(path)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(profile()).encode())  # a byte order mark is harmless
    assert store.load_profile_file(path).spec.id == "TEST-1"


@pytest.mark.parametrize("name", ["missing.json", "", "a\x00b", "x" * 5000])
def test_paths_that_lead_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError):
        store.load_profile_file(tmp_path / name)
    if name:
        with pytest.raises(ProfileError):
            store.load_gpu("H100", [tmp_path / name])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ProfileError, match="not a regular file"):
        store.load_gpu("H100", [tmp_path / "pipe.json"])


def test_per_gpu_and_per_node_rates_may_not_be_mixed_up(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "profile": "cluster",
        "id": "c",
        "provider": "p",
        "gpu": "H100-SXM5-80GB",
        "gpus_per_node": number(8, "count"),
        "nics_per_node": number(8, "count"),
        "nic_bandwidth": number(400, "Gb/s"),
        "node_scaleout_bandwidth": number(400, "GB/s"),
        "scaleout_bandwidth": number(50, "GB/s"),
    }
    path = write(tmp_path / "c.json", plain)
    assert store.load_cluster("c", [path]).spec.scaleout_bytes_per_s == 50e9
    for field, wrong in (("scaleout_bandwidth", number(400, "GB/s")), ("nic_bandwidth", number(400, "GB/s"))):
        with pytest.raises(ProfileError, match=f"{field}.* is not node_scaleout_bandwidth"):
            store.load_profile_file(write(path, {**plain, field: wrong}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*profile(), "aliases", "usable_memory", "notes", "gpus_per_node", "tdp", "matmul"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4), json_values, st.booleans())
def test_any_json_gives_a_profile_or_one_line(
    tmp_path: Path, changes: dict[str, object], extra: object, keep: bool
) -> None:
    path = tmp_path / "fuzz.json"
    write(path, json.dumps({**profile(tdp=extra), **changes} if keep else extra))
    store._read_as_of.cache_clear()
    store._validate_as_of.cache_clear()
    for load in (partial(store.load_profile_file, path), partial(store.load_gpu, "TEST-1", [path])):
        try:
            assert load().spec.id
        except DscalcError as error:
            message = str(error)
            assert "\n" not in message


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.integers(min_value=0, max_value=400))
def test_any_bytes_give_a_profile_or_one_line(tmp_path: Path, noise: bytes, cut: int) -> None:
    path = tmp_path / "fuzz.json"
    path.write_bytes(json.dumps(profile()).encode()[:cut] + noise)
    store._read_as_of.cache_clear()
    store._validate_as_of.cache_clear()
    try:
        assert store.load_profile_file(path).spec.id
    except ProfileError as error:
        message = str(error)
        assert str(path) in message


# --------------------------------------------------------------------------------------------------------------- speed
def test_an_exact_id_opens_one_file() -> None:
    store._read_as_of.cache_clear()
    store._validate_as_of.cache_clear()
    store.load_gpu("MI300X")
    assert store._read_as_of.cache_info().misses == 1


@pytest.mark.slow
def test_lookup_is_quick_and_starts_without_numpy(repository: Path) -> None:
    script = (
        "import sys, time; from dscalc.specs import store; store.load_gpu('T4'); t = time.perf_counter();"
        "store.load_gpu('H100'); print(time.perf_counter() - t, 'numpy' in sys.modules)"
    )
    runs = []
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=True)
        seconds, numpy_loaded = ran.stdout.split()
        assert numpy_loaded == "False"
        runs.append(float(seconds))
    assert min(runs) < 0.010 * 5  # 10 ms on an idle machine, with room for a busy one
    started = time.perf_counter()
    store.load_gpu("H100")
    assert time.perf_counter() - started < 0.010


def test_shipped_profiles_read_as_they_would_be_checked() -> None:
    loads: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (store.load_gpu, store.gpu_ids()),
        (store.load_cluster, store.cluster_ids()),
        (store.load_interconnect, store.interconnect_ids()),
    )
    for found in (load(name) for load, names in loads for name in names):
        checked = type(found.spec).model_validate(json.loads(found.path.read_text(encoding="utf-8")))
        assert found.spec == checked
        assert repr(found.spec) == repr(checked), "the same fields are set, to values of the same types"
