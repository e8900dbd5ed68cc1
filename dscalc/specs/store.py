"""Find hardware profiles by exact id or declared alias, never by a part of a name.

Names fold case and the characters space, dash, underscore and dot, so ``h100 sxm5 80gb`` is ``H100-SXM5-80GB``. User
profiles (arguments first, then ``DSCALC_PROFILES``) win over shipped ones. Files are untrusted: size, depth, encoding,
duplicate keys and non-finite numbers are checked, and whatever is wrong is a ProfileError that names the file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from dscalc.errors import InputError, ProfileError, UnknownNameError
from dscalc.frozen import dataclass
from dscalc.specs.bounded_file import fault, read_bounded
from dscalc.specs.hardware import GpuSpec
from dscalc.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from dscalc.specs.cluster import ClusterSpec
    from dscalc.specs.links import InterconnectSpec

PROFILES_VARIABLE = "DSCALC_PROFILES"
MAX_FILE_BYTES = 1 * MIB
MAX_DEPTH = 12  # a well-formed profile nests four deep
MAX_NAME = 80  # characters

Kind = Literal["gpu", "cluster", "interconnect"]
PathLike = str | os.PathLike[str]
Spec = TypeVar("Spec", GpuSpec, "ClusterSpec", "InterconnectSpec")
AnySpec = TypeVar("AnySpec", bound="GpuSpec | ClusterSpec | InterconnectSpec", covariant=True)

_FOLDERS: dict[Kind, str] = {"gpu": "gpus", "cluster": "clusters", "interconnect": "interconnects"}
_KINDS = 'profile: must be "gpu" or "cluster" or "interconnect"'
_FOLD = str.maketrans("", "", " -_.")


@dataclass(frozen=True, slots=True)
class Resolved(Generic[AnySpec]):
    """A profile as found.

    Attributes:
        spec: the profile.
        assumption: what the alias used takes for granted; None for an exact id.
        file: the file it came from.
    """

    spec: AnySpec
    assumption: str | None
    file: str

    @property
    def path(self) -> Path:
        """The file it came from."""
        from pathlib import Path

        return Path(self.file)


def fold_name(name: str) -> str:
    """The form in which two spellings of one name are equal.

    Args:
        name: id or alias as typed [text].

    Returns:
        The name without case, spaces, dashes, underscores and dots [text].

    >>> fold_name("H100 SXM5-80GB") == fold_name("h100_sxm5_80gb")
    True
    """
    return name.casefold().translate(_FOLD)


# ------------------------------------------------------------------------------------------------------- reading a file
def _fail(path: str, message: str, line: int | None = None) -> NoReturn:
    raise ProfileError(message, where=f"{path}:{line}" if line else path)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number a profile may hold; every value is finite")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:MAX_NAME]!r} stands twice in one object; keep one")
    return table


def _stamp(path: str) -> tuple[int, int]:
    """Modification time and size of a regular file."""
    try:
        found = os.stat(path)
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}; give the path of a JSON file")
    except ValueError:
        raise ProfileError(f"{path!r} is not a path; give the path of a JSON file") from None
    if not stat.S_ISREG(found.st_mode):
        _fail(path, "is not a regular file; give the path of a JSON file")
    return found.st_mtime_ns, found.st_size


def _read(path: str) -> dict[str, Any]:
    """The object in a profile file, syntax checked but not yet validated."""
    return _read_as_of(path, *_stamp(path))


@lru_cache(maxsize=1024)
def _read_as_of(path: str, _mtime_ns: int, _size: int) -> dict[str, Any]:
    try:
        raw = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            _fail(path, f"is larger than {MAX_FILE_BYTES // MIB} MiB; a profile has a few kilobytes")
        _fail(path, f"cannot be read: {error.strerror}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _fail(path, "is not UTF-8 text; save it as UTF-8", raw.count(b"\n", 0, error.start) + 1)
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        _fail(path, f"is not JSON: {error.msg} in column {error.colno}", error.lineno)
    except RecursionError:
        _fail(path, f"nested more than {MAX_DEPTH} deep; a profile is one object of records")
    except ValueError as error:
        _fail(path, fault(error))
    if not isinstance(data, dict):
        _fail(
            path, 'holds no JSON object; a profile starts with {"profile": "gpu", ...} or {"profile": "cluster", ...}'
        )
    return data


def _validate(path: str, model: type[Spec]) -> Spec:
    return _validate_as_of(path, model, *_stamp(path))  # type: ignore[return-value, arg-type]


@lru_cache(maxsize=1024)
def _validate_as_of(
    path: str, model: type[Spec], _mtime_ns: int, _size: int
) -> GpuSpec | ClusterSpec | InterconnectSpec:
    from dscalc.specs.profile_check import check_depth, first_fault

    data = _read_as_of(path, _mtime_ns, _size)
    try:
        check_depth(data, MAX_DEPTH)
        return model.model_validate(data)
    except (ArithmeticError, RecursionError, ValueError) as error:
        _fail(path, first_fault(error, MAX_NAME))


def _trust(path: str, model: type[Spec]) -> Spec:
    """A shipped profile, which the tests have validated: checking it again costs more than an estimate."""
    return model.read(_read(path))


def load_profile_file(path: PathLike) -> Resolved[GpuSpec | ClusterSpec]:
    """Load one profile file, whichever kind it is.

    Args:
        path: a JSON file [path].

    Returns:
        The GPU or cluster it describes.

    Raises:
        ProfileError: the file cannot be read or breaks a rule; names file, line or field, and what would be right.
    """
    from pathlib import Path

    file = str(Path(path))
    profile = _read(file).get("profile")
    if profile == "gpu":
        return Resolved(_validate(file, GpuSpec), None, file)
    if profile == "cluster":
        from dscalc.specs.cluster import ClusterSpec

        return Resolved(_validate(file, ClusterSpec), None, file)
    if profile == "interconnect":
        _fail(file, "is an interconnect; name it with --interconnect and give the file of its cluster here")
    _fail(file, _KINDS)


# ------------------------------------------------------------------------------------------------------ finding a file
def profile_root() -> Path:
    """The folder of shipped profiles: inside the package where installed, beside it in a checkout.

    Raises:
        ProfileError: neither exists.
    """
    from pathlib import Path

    return Path(_root())


@lru_cache(maxsize=1)
def _root() -> str:
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for home in (package, os.path.dirname(package)):
        folder = os.path.join(home, "hardware_profiles")
        if os.path.isdir(folder):
            return folder
    raise ProfileError("the shipped hardware profiles are missing; reinstall dscalc", where=package)


@lru_cache(maxsize=8)
def _shipped(kind: Kind) -> dict[str, str]:
    """Folded id -> file; a shipped file is named after its id, so nothing need be opened."""
    folder = os.path.join(_root(), _FOLDERS[kind])
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
    return {fold_name(_stem(name)): os.path.join(folder, name) for name in names}


def _stem(path: str) -> str:
    return os.path.basename(path).removesuffix(".json")


@lru_cache(maxsize=8)
def _shipped_aliases(kind: Kind) -> dict[str, tuple[str, str, str]]:
    """Folded alias -> file, alias as written, assumption."""
    return _index(_shipped(kind).values(), kind)[1]


def _names(path: str, data: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The names a file claims, each with its assumption (None for the id)."""
    name, aliases = data.get("id"), data.get("aliases", [])
    if not (isinstance(name, str) and name.isprintable()):
        _fail(path, "id: is missing or not printable text")
    if not isinstance(aliases, list):
        _fail(path, 'aliases: must be a list of {"name": ..., "assumption": ...}')
    yield name, None
    for alias in aliases:
        entry = alias if isinstance(alias, dict) else {}
        alias_name, assumption = entry.get("name"), entry.get("assumption")
        if not (isinstance(alias_name, str) and alias_name.isprintable() and isinstance(assumption, str)):
            _fail(path, 'aliases: must be a list of {"name": ..., "assumption": ...}')
        yield alias_name, assumption


def _index(files: Iterable[str], kind: Kind) -> tuple[dict[str, str], dict[str, tuple[str, str, str]]]:
    """Ids and aliases of the files of one kind; no two files may claim one name."""
    ids: dict[str, str] = {}
    aliases: dict[str, tuple[str, str, str]] = {}
    for path in files:
        data = _read(path)
        if data.get("profile") != kind:
            if data.get("profile") not in list(_FOLDERS):
                _fail(path, _KINDS)
            continue
        for name, assumption in _names(path, data):
            folded = fold_name(name)
            if folded in ids or folded in aliases:
                other = ids.get(folded) or aliases[folded][0]
                _fail(path, f"the name {name[:MAX_NAME]!r} is already taken by {other}")
            if assumption is None:
                ids[folded] = path
            else:
                aliases[folded] = (path, name, assumption)
    return ids, aliases


def _files_of(source: PathLike) -> list[str]:
    """The JSON files a file or folder stands for."""
    from pathlib import Path

    path = Path(source).expanduser()
    try:
        if not path.is_dir():
            return [str(path)]
        folders = (path, *(path / name for name in _FOLDERS.values()))
        return [str(file) for folder in folders for file in sorted(folder.glob("*.json"))]
    except (OSError, ValueError, RuntimeError):
        return [str(path)]  # reading it says what is wrong


def _user_sources(profiles: Sequence[PathLike]) -> list[PathLike]:
    return [*profiles, *(part for part in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep) if part)]


def _user_index(profiles: Sequence[PathLike], kind: Kind) -> tuple[dict[str, str], dict[str, tuple[str, str, str]]]:
    """Ids and aliases of the user's files; an earlier source wins over a later one, name by name."""
    ids: dict[str, str] = {}
    aliases: dict[str, tuple[str, str, str]] = {}
    for source in _user_sources(profiles):
        more_ids, more_aliases = _index(_files_of(source), kind)
        taken = ids.keys() | aliases.keys()
        ids.update((name, path) for name, path in more_ids.items() if name not in taken)
        aliases.update((name, entry) for name, entry in more_aliases.items() if name not in taken)
    return ids, aliases


def _load(name: str, kind: Kind, model: type[Spec], profiles: Sequence[PathLike]) -> Resolved[Spec]:
    folded = fold_name(name) if len(name) <= MAX_NAME else ""
    user_ids, user_aliases = _user_index(profiles, kind)
    if folded in user_ids:
        return Resolved(_validate(user_ids[folded], model), None, user_ids[folded])
    if folded in user_aliases:
        path, _, assumption = user_aliases[folded]
        return Resolved(_validate(path, model), assumption, path)
    shipped = _shipped(kind)
    if folded in shipped:
        return Resolved(_trust(shipped[folded], model), None, shipped[folded])
    shipped_aliases = _shipped_aliases(kind)
    if folded in shipped_aliases:
        path, _, assumption = shipped_aliases[folded]
        return Resolved(_trust(path, model), assumption, path)
    if name.strip().isdecimal():  # after the aliases: 4090 is one
        raise InputError(f"--{kind} takes an id; did you mean --gpus {name.strip()[:MAX_NAME]}?")
    known = [_read(path)["id"] for path in user_ids.values()] + [_stem(path) for path in shipped.values()]
    known += [entry[1] for table in (user_aliases, shipped_aliases) for entry in table.values()]
    shown = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."
    raise UnknownNameError("GPU" if kind == "gpu" else kind, shown, known)


def load_gpu(name: str, profiles: Sequence[PathLike] = ()) -> Resolved[GpuSpec]:
    """Find a GPU by exact id or declared alias.

    Args:
        name: id or alias, folded by :func:`fold_name` [text].
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The profile, and for an alias what it takes for granted.

    Raises:
        UnknownNameError: nothing declares that name; suggests the nearest.
        InputError: the name is a number, as in ``--gpu 64``.
        ProfileError: a profile file is broken.

    >>> load_gpu("h100 sxm5 80gb").spec.id
    'H100-SXM5-80GB'
    """
    return _load(name, "gpu", GpuSpec, profiles)


def load_interconnect(name: str, profiles: Sequence[PathLike] = ()) -> Resolved[InterconnectSpec]:
    """Find an interconnect by exact id or declared alias.

    Args:
        name: id or alias, folded by :func:`fold_name` [text]; for a rate such as ``400Gb/s`` use
            :func:`dscalc.specs.network.load_interconnect`.
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The profile, and for an alias what it takes for granted.

    Raises:
        UnknownNameError: nothing declares that name; suggests the nearest.
        InputError: the name is a number.
        ProfileError: a profile file is broken.
    """
    from dscalc.specs.links import InterconnectSpec

    return _load(name, "interconnect", InterconnectSpec, profiles)


def load_cluster(name: str, profiles: Sequence[PathLike] = ()) -> Resolved[ClusterSpec]:
    """Find a cluster by exact id or declared alias.

    Args:
        name: id or alias, folded by :func:`fold_name` [text].
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The profile, and for an alias what it takes for granted.

    Raises:
        UnknownNameError: nothing declares that name; suggests the nearest.
        InputError: the name is a number.
        ProfileError: a profile file is broken.
    """
    from dscalc.specs.cluster import ClusterSpec

    return _load(name, "cluster", ClusterSpec, profiles)


def _ids(kind: Kind, profiles: Sequence[PathLike]) -> tuple[str, ...]:
    user = [_read(path)["id"] for path in _user_index(profiles, kind)[0].values()]
    taken = {fold_name(name) for name in user}
    return tuple(sorted([*user, *(_stem(p) for folded, p in _shipped(kind).items() if folded not in taken)]))


def gpu_ids(profiles: Sequence[PathLike] = ()) -> tuple[str, ...]:
    """Ids of all GPUs, the user's and the shipped.

    Args:
        profiles: the user's profile files or folders [paths].

    Returns:
        Sorted ids [text].
    """
    return _ids("gpu", profiles)


def cluster_ids(profiles: Sequence[PathLike] = ()) -> tuple[str, ...]:
    """Ids of all clusters, like :func:`gpu_ids`."""
    return _ids("cluster", profiles)


def interconnect_ids(profiles: Sequence[PathLike] = ()) -> tuple[str, ...]:
    """Ids of all interconnects, like :func:`gpu_ids`."""
    return _ids("interconnect", profiles)
