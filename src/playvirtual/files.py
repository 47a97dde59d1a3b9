"""Files that may be foreign or rotten: the one place where they are looked for, opened, parsed and checked.

A run folder, an export or a grid may come from somebody else, or lie on a disk that fails. What is there and cannot be
read is an error of one line, never an absence. Only regular files are opened: a FIFO or a device would never end.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard

from playvirtual.errors import InputError, closest, shown, shown_text

RECORD_BYTES = 2**26  # the largest record (JSON, TOML) that is parsed
LARGEST_WHOLE = 2**63 - 1
DEEPEST = 100  # lists and records inside each other; a checkpoint has about 20
CGROUP_FILES = (  # what a container may use, and what it uses, in the second and the first version of cgroups
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)

Kind = Literal["file", "folder", "other"]


class Unreadable(InputError):
    """Something is there, or may be, and cannot be read."""

    def __init__(self, field: str, path: Path | str, cause: Exception | str) -> None:
        self.reason = cause if isinstance(cause, str) else _reason(cause)
        # Refused by the system, as by permissions or a lost network mount: what is there may be in order.
        self.refused = isinstance(cause, OSError) and cause.errno != errno.EIO
        super().__init__(f"{field}: {shown(path)} cannot be read: {self.reason}")


class Missing(Unreadable):
    """There is no such file."""


def kind(path: Path, field: str) -> Kind | None:
    """What is at the path, links followed; None if there is nothing. `field` names the option in the error."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Unreadable(field, path, error) from None
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def is_file(path: Path, field: str) -> bool:
    """Whether a regular file is there; raises if what is there is of another kind."""
    found = kind(path, field)
    if found not in (None, "file"):
        raise Unreadable(field, path, "it is not a regular file")
    return found == "file"


def listed(folder: Path, field: str) -> list[str]:
    """The sorted names in a folder; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Unreadable(field, folder, error) from None


def nearest(path: Path) -> Path | None:
    """The path beside one that is not there, with the same ending, whose name is the most similar, if any is."""
    try:
        names = {Path(name).stem: name for name in os.listdir(path.parent) if Path(name).suffix == path.suffix}
    except (OSError, ValueError):
        return None
    stem = closest(path.stem, sorted(names))
    return path.with_name(names[stem]) if stem else None


def read(path: Path, field: str, limit: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes, by default what the memory has room for."""
    with _opened(path, field) as file:
        size = os.fstat(file.fileno()).st_size
        if size > (allowed := available_memory() // 2 if limit is None else limit):
            raise Unreadable(field, path, f"it has {size:,} bytes; allowed: {allowed:,} or less")
        try:
            return file.read()
        except OSError as error:
            raise Unreadable(field, path, error) from None


def tail(path: Path, field: str, size: int) -> bytes:
    """The last `size` bytes of a regular file, which may be growing."""
    with _opened(path, field) as file:
        try:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
        except OSError as error:
            raise Unreadable(field, path, error) from None


def _opened(path: Path, field: str) -> BinaryIO:
    """The file, opened for reading. Its kind is known before and after: opening alone can block, or act on a device."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Unreadable(field, path, "it is not a regular file")
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Missing(field, path, error) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise Unreadable(field, path, error) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable(field, path, "it is not a regular file")
    return file


def parse_json(data: bytes) -> Any:
    """The value of JSON in UTF-8; raises a ValueError of one line for anything else, and for endless nesting."""
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    if data.count(b"[") + data.count(b"{") > DEEPEST:
        _check_depth(value)
    if b"\\u" in data:
        _check_characters(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [item for each in level for item in _items(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _check_characters(value: Any) -> None:
    """Half a character, which JSON can spell (`\\ud800`), can be neither printed nor drawn nor written."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it has half a character (a lone surrogate) in a text") from None


def _items(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in found if isinstance(item, dict | list)]


def read_record(path: Path, field: str) -> dict[str, Any]:
    """The JSON object in a file."""
    data = read(path, field, RECORD_BYTES)
    try:
        return as_record(parse_json(data))
    except ValueError as error:
        raise Unreadable(field, path, str(error)) from None


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        data = read(path, field, RECORD_BYTES)
    except Missing as error:
        if (meant := nearest(path)) is None:
            raise
        raise InputError(f"{error}; did you mean {shown(meant)}?") from None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{field}: {str(path)!r} is not TOML: {shown_text(str(error))}") from None


def as_record(value: Any) -> dict[str, Any]:
    """The same value if it is a JSON object; raises a ValueError otherwise, as the functions below do."""
    if not isinstance(value, dict):
        raise ValueError("it is not a record")
    return value


def entry(record: Mapping[str, Any], name: str) -> Any:
    """The value of a record's field, which must be there."""
    if name not in record:
        raise ValueError(f"the field {name!r} is missing")
    return record[name]


def as_whole(value: Any, name: str, low: int = 0, high: int = LARGEST_WHOLE) -> int:
    """A whole number in that interval."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: {shown(value)} is not allowed; allowed: a whole number, {low} to {high}")
    return value


def as_number(value: Any, name: str) -> float:
    """A finite number."""
    if is_number(value):
        return float(value)
    raise ValueError(f"{name}: {shown(value)} is not allowed; allowed: a finite number")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of JSON is a finite number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= LARGEST_WHOLE if isinstance(value, int) else math.isfinite(value)


def as_numbers(value: Any, name: str) -> list[float]:
    """A list of finite numbers."""
    if not isinstance(value, list):
        raise ValueError(f"{name}: {shown(value)} is not allowed; allowed: a list of numbers")
    return [as_number(item, name) for item in value]


def open_for_writing(path: Path, *, append: bool = False) -> BinaryIO:
    """The regular file at that path, made if it is missing; raises an OSError for links, FIFOs and devices.

    A link in a foreign run folder would lead the writing to any file of the user's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        reason = {errno.ELOOP: "it is a link", errno.ENXIO: "it is not a regular file"}.get(error.errno or 0)
        raise OSError(error.errno, reason or error.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if not append:
        os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "ab" if append else "wb")


def write(path: Path, data: bytes | str) -> None:
    """Replaces the content of a regular file, or makes one; raises an OSError where that cannot be."""
    with open_for_writing(path) as file:
        file.write(data.encode("utf-8", errors="replace") if isinstance(data, str) else data)


def available_memory() -> int:
    """The bytes of memory that a process could still get on this machine, within the limits of its container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, used in CGROUP_FILES:
        numbers = [line for name in (limit, used) for line in _lines(f"/sys/fs/cgroup/{name}")]
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            found.append(max(0, int(numbers[0]) - int(numbers[1])))
    return min(found)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
