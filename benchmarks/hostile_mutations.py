"""What benchmarks/hostile.py makes bad: files, records, tensors, folders, names, flags, grids and environments."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VICTIM = "victim"  # a file beside the run folder that nothing may change

GRID = """\
title = "A grid"
suite = "toy/catch"

[[row]]
label = "first"
method = "playvirtual"
options = { K = 2, steps = 40, learning_starts = 20, eval_episodes = 2 }

[[row]]
method = "rl"
options = { steps = 40, learning_starts = 20 }
"""

# Environments that break their contract, each in one way.
FOREIGN = """
import gymnasium, numpy as np

class Good(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    metadata = {"render_modes": []}
    step_number = 0
    def image(self): return np.zeros((10, 10, 1), np.uint8)
    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return self.image(), {}
    def reward(self): return 1.0
    def ends(self): return self.step_number >= 7
    def bad(self): return self.step_number == 5
    def step(self, action):
        self.step_number += 1
        return self.image(), self.reward(), self.ends(), False, {}

class NanReward(Good):
    def reward(self): return float("nan") if self.bad() else 1.0
class InfiniteReward(Good):
    def reward(self): return float("inf") if self.bad() else 1.0
class HugeReward(Good):
    def reward(self): return 1e300 if self.bad() else 1.0
class NoReward(Good):
    def reward(self): return None if self.bad() else 1.0
class TextReward(Good):
    def reward(self): return "much" if self.bad() else 1.0
class ManyRewards(Good):
    def reward(self): return np.ones(3) if self.bad() else 1.0
class OtherShape(Good):
    def image(self): return np.zeros((12, 10, 1) if self.bad() else (10, 10, 1), np.uint8)
class OtherType(Good):
    def image(self): return np.zeros((10, 10, 1), np.float32 if self.bad() else np.uint8)
class OtherRange(Good):
    observation_space = gymnasium.spaces.Box(0, 1, (10, 10, 1), np.uint8)
    def image(self): return np.full((10, 10, 1), 9 if self.bad() else 1, np.uint8)
class NoImage(Good):
    def image(self): return None if self.bad() else np.zeros((10, 10, 1), np.uint8)
class Raises(Good):
    def ends(self): return [][1] if self.bad() else False
class RaisesInReset(Good):
    resets = 0
    def reset(self, **_):
        self.resets += 1
        if self.resets == 3: raise OSError("no more\\nlevels")
        return super().reset()
class OldStep(Good):
    def step(self, action): return self.image(), 1.0, False, {}
class RejectsActions(Good):
    def step(self, action):
        assert action == 0, f"{action!r} is invalid"
        return super().step(action)
class Exits(Good):
    def ends(self):
        if self.bad(): raise SystemExit("bye")
        return False
class Endless(Good):
    def ends(self): return False
class Box(Good):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
class NoActions(Good):
    action_space = gymnasium.spaces.Dict({})
class NoPixels(Good):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)

for name, kind in list(globals().items()):
    if isinstance(kind, type) and issubclass(kind, Good):
        gymnasium.register(f"{name}-v0", kind)
"""
FOREIGN_NAMES = (
    *("NanReward", "InfiniteReward", "HugeReward", "NoReward", "TextReward", "ManyRewards", "OtherShape", "OtherType"),
    *(
        "OtherRange",
        "NoImage",
        "Raises",
        "RaisesInReset",
        "OldStep",
        "RejectsActions",
        "Exits",
        "Box",
        "NoActions",
        "Endless",
    ),
    *("NoPixels", "Missing"),
)

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 10**6, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308),
    *(float("nan"), float("inf"), "", "x", "1", "nan", "\ud800", "\0", "a\nb", "../../x", "/dev/zero", "a" * 5000),
    *([], [[]], [1, 2, 3], ["x"], [None], [float("nan")], {}, {"a": {}}, {"tensor": ["x", None]}, {"dict": [[1]]}),
    *({"tensor": [[], 3]}, {"list": 3}, {"tuple": None}, {"n": 10**9}, {"n": "x"}, {"low": [1], "high": [0]}),
]


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def spoil_a_file(chance: random.Random, run: Path, folder: Path, *, permissions: bool) -> str:
    """Makes one file of a run folder bad; returns what was done."""
    (folder / VICTIM).write_text('{"step": 1}\nprecious\n')
    file = chance.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    name = str(file.relative_to(run))
    if permissions:
        file.chmod(0)
        return f"{name}: unreadable"
    ways: list[Callable[[random.Random, Path, Path], str]] = [spoil_bytes, spoil_bytes, make_special]
    if file.suffix in (".json", ".jsonl"):
        ways += [spoil_json] * 5
    if file.suffix == ".safetensors":
        ways += [spoil_tensors] * 4
    if file.suffix == ".zlib":
        ways += [spoil_frames] * 2
    about = chance.choice(ways)(chance, file, folder)
    if chance.random() < 0.7:
        about += repair_checksums(file)
    return f"{name}: {about}"


def spoil_a_record(chance: random.Random, run: Path, folder: Path, *, permissions: bool) -> str:
    """Makes one value of config.json or of a log bad."""
    name = chance.choice(["config.json", "evaluations.jsonl", "timing.jsonl", "metrics.jsonl"])
    return f"{name}: {spoil_json(chance, run / name, folder)}"


def repair_checksums(file: Path) -> str:
    """Gives a manifest beside the file the checksum of its present content."""
    manifest = file.parent / "manifest.json"
    if file == manifest or not file.is_file() or file.is_symlink() or file.stat().st_size > 2**22:
        return ""
    try:
        sums = json.loads(manifest.read_text())
        sums[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(sums))
    except (OSError, ValueError, TypeError):
        return ""
    return ", right checksum"


def spoil_bytes(chance: random.Random, file: Path, folder: Path) -> str:
    data = file.read_bytes()
    at = chance.randrange(len(data) + 1)
    changes: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "cut": lambda: data[:at],
        "without its beginning": lambda: data[at:],
        "halves swapped": lambda: data[at:] + data[:at],
        "twice": lambda: data + data,
        "a byte flipped": lambda: data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
        "random bytes": lambda: chance.randbytes(300),
        "zeros": lambda: bytes(300),
        "garbage appended": lambda: data + b"\xff\xfe\x00[",
        "UTF-16": lambda: data.decode("utf-8", "replace").encode("utf-16"),
        "a byte order mark": lambda: b"\xef\xbb\xbf" + data,
        "Latin-1": lambda: b'{"task": "\xe9\xff"}\n' + data,
        "200,000 brackets": lambda: b"[" * 200_000 + b"\n" + data,
        "200,000 braces": lambda: b'{"a":' * 200_000 + b"\n" + data,
        "nested 5,000 deep": lambda: json.dumps(_nested(500)).encode() * 1 + b"\n" + data,
        "a pickle": lambda: b"cos\nsystem\n(S'touch executed'\ntR." + data,
    }
    name = chance.choice(sorted(changes))
    file.write_bytes(changes[name]())
    return name


def make_special(chance: random.Random, file: Path, folder: Path) -> str:
    """Puts something that is no regular file, or a very large one, in the place of a file."""
    other = chance.choice(sorted(path for path in file.parent.iterdir() if path.is_file()))
    ways: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "a folder": file.mkdir,
        "a FIFO": lambda: os.mkfifo(file, 0o666),
        "a socket": lambda: _make_socket(file),
        "a link to /dev/zero": lambda: file.symlink_to("/dev/zero"),
        "a link to /dev/stdin": lambda: file.symlink_to("/dev/stdin"),
        "a link to nothing": lambda: file.symlink_to("nowhere"),
        "a link to itself": lambda: file.symlink_to(file.name),
        "a link to a file elsewhere": lambda: file.symlink_to(folder / VICTIM),
        "a file of a terabyte": lambda: _make_sparse(file),
        "another file": lambda: shutil.copy(other, file) if other != file else file.touch(),
    }
    name = chance.choice(sorted(ways))
    if name == "another file" and other != file:
        shutil.copy(other, file)
        return f"the content of {other.name}"
    file.unlink()
    ways[name]()
    return name


def _make_socket(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(file.name)
    finally:
        os.chdir(here)


def _make_sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


def spoil_json(chance: random.Random, file: Path, folder: Path) -> str:
    """Changes one place in a JSON file, or in one line of a log."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    at = chance.randrange(len(lines))
    record = json.loads(lines[at])
    about = change_json(chance, record)
    lines[at] = json.dumps(record)
    file.write_text("\n".join(lines) + "\n")
    return about


def change_json(chance: random.Random, record: Any) -> str:
    """Changes one place of a JSON value in place."""
    places = list(_places(record))
    if not places:
        return "nothing"
    holder, key = chance.choice(places)
    way = chance.random()
    if way < 0.2:
        del holder[key]
        return f"without {key!r}"
    if way < 0.3 and isinstance(holder, dict):
        holder[chance.choice(["extra", "", "\ud800", "a" * 5000])] = chance.choice(VALUES)
        return "a further field"
    value = chance.choice(VALUES) if way < 0.9 else _nested(400)
    holder[key] = value
    return f"{key!r} is {str(value)[:40]!r}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def spoil_tensors(chance: random.Random, file: Path, folder: Path) -> str:
    """Changes the header or the numbers of a safetensors file."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    names = [name for name in header if name != "__metadata__"]
    name = chance.choice(names)
    entry = header[name]
    begin, end = entry["data_offsets"]
    ways = ("renamed", "dropped", "dtype", "shape", "flat", "NaN", "zeros", "huge", "header", "offsets")
    way = chance.choice(ways)
    match way:
        case "renamed":
            header[f"{name}x"] = header.pop(name)
        case "dropped":
            header[name] = {"dtype": "F32", "shape": [0], "data_offsets": [begin, begin]}
        case "dtype":
            entry["dtype"] = chance.choice(["I32", "F64", "U8", "BOOL", "BF16", "X"])
        case "shape":
            entry["shape"] = [*entry["shape"][::-1], 1]
        case "flat":
            entry["shape"] = [end - begin]
            entry["dtype"] = "U8"
        case "NaN":
            body[begin:end] = b"\xff" * (end - begin)
        case "zeros":
            body[begin:end] = bytes(end - begin)
        case "huge":
            entry["shape"] = [2**40]
        case "header":
            change_json(chance, header)
        case _:
            entry["data_offsets"] = [end, begin]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(body))
    return f"{name}: {way}"


def spoil_frames(chance: random.Random, file: Path, folder: Path) -> str:
    """Replaces the compressed frames of a replay buffer."""
    content = chance.choice([b"", b"x", bytes(2**24), zlib.decompress(file.read_bytes())[:-1]])
    file.write_bytes(zlib.compress(content))
    return f"{len(content)} bytes of frames"


def spoil_a_folder(chance: random.Random, run: Path, folder: Path, *, permissions: bool) -> str:
    """Changes the layout of a run folder."""
    (folder / VICTIM).write_text("precious")
    checkpoints = run / "checkpoints"
    steps = sorted(checkpoints.iterdir())
    if permissions:
        shut = chance.choice([checkpoints, steps[-1], run, run / "metrics.jsonl", steps[0]])
        shut.chmod(chance.choice([0, 0o400, 0o100]))
        return f"{shut.relative_to(folder)}: mode {shut.stat().st_mode & 0o777:o}"

    def replaced(path: Path, make: Callable[[], object]) -> None:
        shutil.rmtree(path)
        make()

    ways: dict[str, Callable[[], object]] = {
        "no checkpoints": lambda: shutil.rmtree(checkpoints),
        "an empty folder of checkpoints": lambda: replaced(checkpoints, checkpoints.mkdir),
        "checkpoints is a file": lambda: replaced(checkpoints, checkpoints.touch),
        "checkpoints is a FIFO": lambda: replaced(checkpoints, lambda: os.mkfifo(checkpoints)),
        "checkpoints is a link to nothing": lambda: replaced(checkpoints, lambda: checkpoints.symlink_to("nowhere")),
        "checkpoints is a link to itself": lambda: replaced(checkpoints, lambda: checkpoints.symlink_to("checkpoints")),
        "the newest checkpoint is empty": lambda: replaced(steps[-1], steps[-1].mkdir),
        "the newest checkpoint is a file": lambda: replaced(steps[-1], steps[-1].touch),
        "a checkpoint without a number": lambda: steps[-1].rename(checkpoints / "step-newest"),
        "a checkpoint of a large number": lambda: steps[-1].rename(checkpoints / f"step-{'9' * 30}"),
        "one checkpoint is the other": lambda: replaced(steps[0], lambda: shutil.copytree(steps[1], steps[0])),
        "the checkpoints are swapped": lambda: _swap(*steps),
        "the lock is a FIFO": lambda: _instead(run / "run.lock", lambda path: os.mkfifo(path)),
        "the lock is a folder": lambda: _instead(run / "run.lock", lambda path: path.mkdir()),
        "the lock is a link": lambda: _instead(run / "run.lock", lambda path: path.symlink_to(folder / VICTIM)),
        "metrics is a link": lambda: _instead(run / "metrics.jsonl", lambda path: path.symlink_to(folder / VICTIM)),
        "videos is a file": lambda: (run / "videos").touch(),
        "videos is a FIFO": lambda: os.mkfifo(run / "videos"),
        "probes is a FIFO": lambda: _instead(run / "probes.json", lambda path: os.mkfifo(path)),
        "a partial file is a link": lambda: (run / "probes.partial").symlink_to(folder / VICTIM),
        "no config.json": (run / "config.json").unlink,
        "no logs": lambda: [path.unlink() for path in run.glob("*.jsonl")],
    }
    name = chance.choice(sorted(ways))
    ways[name]()
    return name


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


def _swap(first: Path, second: Path) -> None:
    other = first.with_name("other")
    first.rename(other)
    second.rename(first)
    other.rename(second)


def bad_path(chance: random.Random, folder: Path) -> tuple[str, str]:
    """A path that cannot be what it should be, and what it is."""
    (folder / "file").write_text("x")
    (folder / "shut").mkdir()
    (folder / "shut" / "inside").mkdir()
    (folder / "shut").chmod(0)
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.toml")
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nowhere")
    (folder / "zero.toml").symlink_to("/dev/zero")
    paths = {
        "in a folder that cannot be searched": "shut/inside",
        "below a folder that cannot be searched": "shut/inside/deeper/run",
        "a name that is too long": "n" * 300,
        "a name that is too long, in a folder": "free/" + "n" * 300,
        "a path that is too long": "/".join(["n" * 200] * 30),
        "a long name of a grid": "n" * 300 + ".toml",
        "a NUL": "a\0b",
        "a NUL in a grid's name": "a\0b.toml",
        "a lone surrogate": "a\ud800b",
        "bytes that are no text": os.fsdecode(b"free-\xff\xfe"),
        "a line break": "free\nline",
        "nothing": "",
        "in a file": "file/run",
        "a file": "file",
        "a FIFO": "fifo",
        "a FIFO for a grid": "fifo.toml",
        "an endless grid": "zero.toml",
        "a link to itself": "loop",
        "in a link to itself": "loop/run",
        "a link to nothing": "gone",
        "a device": "/dev/null",
        "in a device": "/dev/null/x",
        "the root": "/",
        "in /proc": "/proc/self/x",
        "memory": "/proc/self/mem",
        "a flag": "--x",
        "a file where no grid is": "file.toml",
        "a grid in Python that is not there": "file.py",
    }
    about = chance.choice(sorted(paths))
    return paths[about], f"path: {about}"


TEXTS = (
    "",
    " ",
    ",",
    "-1",
    "0",
    "1.5",
    "x",
    "1,2",
    "true",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "\ud800",
    "9" * 30,
    "9" * 5000,
)
HUGE = ("100000000", "2147483647", "2147483648")  # of sizes: what no memory holds
SIZES = ("M", "batch-size", "hidden", "channels", "dynamics-hidden", "frame-stack", "atoms", "latent")
SIZES_REACH = ("M", "batch-size", "auxiliary-batch-size", "hidden", "latent", "projection-hidden", "image-size")
OTHERS = tuple(
    f"--{name}"
    for names in (
        "seed device threads compile precision log-every checkpoint-every capacity stack-fill action-repeat step-unit",
        "max-episode-frames reward-clip K lambda-pred i-end metric virtual-actions sigma constraint method preset log",
        "encoder-from learning-rate discount n-step v-max kernel-sizes strides eval-envs grayscale eval-epsilon",
        "learning-starts noisy-sigma max-grad-norm priority-exponent image-size updates-per-step nonsense",
    )
    for name in names.split()
)


def bad_flags(chance: random.Random, small: list[str], reach: list[str]) -> tuple[list[str], str]:
    """A command with bad values, and what is bad."""
    if chance.random() < 0.35:
        task, flags, sizes = chance.choice([("toy/catch", small, SIZES), ("toy/reach", reach, SIZES_REACH)])
        flag, value = chance.choice(sizes), chance.choice(HUGE)
        return ["train", task, *flags, "--quiet", "--run-dir", "new", f"--{flag}={value}"], f"size {flag}={value}"
    text = chance.choice(TEXTS)
    if chance.random() < 0.6:
        flag = chance.choice(OTHERS)
        words = ["train", chance.choice(["toy/catch", "toy/reach"]), *small, "--quiet", "--run-dir", "new"]
        return [*words, f"{flag}={text}"], f"flag {flag}={text[:40]!r}"
    forms: list[list[str]] = [
        ["evaluate", "run", f"--episodes={text}"] if text not in ("9" * 30,) else ["evaluate", "run", "--episodes=x"],
        ["evaluate", "run", "--episodes=2", f"--seed={text}"],
        ["evaluate", "run", "--episodes=2", f"--device={text}"],
        ["probe", "run", text],
        ["probe", "run", "dynamics", f"--transitions={'-5' if text.isdecimal() else text}"],
        ["probe", "run", "dynamics", "--transitions=5", f"--seed={text}"],
        ["report", "run", "--out", "page", f"--title={text}"],
        ["export", "run"],
        ["list", text],
        [text],
        [text, text],
        ["train", text],
        ["train", f"toy/{text}"],
        ["train", f"gym/{text}"],
        ["train", f"gym/{text}:{text}"],
        ["train", f"atari/{text}"],
        ["bench", "toy/catch", f"--repeats={'x' if text.isdecimal() else text}", *small],
        ["sweep", "toy", "--dry-run", f"--seeds={text}"],
        ["sweep", "toy", "--dry-run", f"--suite={text}"],
        ["sweep", "toy", "--dry-run", f"--rows={text}"],
        ["sweep", "toy", "--dry-run", f"--engine={text}"],
        ["sweep", "toy", "--dry-run", f"--workers={text}"],
        ["sweep", "toy", "--dry-run", f"--retries={text}"],
        ["sweep", "toy", "--dry-run", f"--mps={text}"],
        ["sweep", text, "--dry-run"],
    ]
    words = chance.choice(forms)
    return words, f"words {[word[:40] for word in words if word not in small]!r}"


TOML_VALUES = (
    *("1", "-1", '""', '"x"', "[]", "[1]", "{}", "true", "nan", "inf", "1979-05-27", '"\\u0000"', '["x"]', "9" * 30),
    *("[" * 2000 + "]" * 2000, "'gym/evil:X-v0'", '"a\\nb"', "{ a = 1 }", "0x7fffffffffffffff"),
)


def spoil_grid(chance: random.Random, file: Path, folder: Path) -> str:
    """Makes the grid of a sweep bad."""
    (folder / VICTIM).write_text("precious")
    (folder / "evil.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\n")
    text = file.read_text()
    if chance.random() < 0.25:
        return spoil_bytes(chance, file, folder)
    if chance.random() < 0.25:
        return make_special(chance, file, folder)
    value = chance.choice(TOML_VALUES)
    target = chance.choice(
        ['"A grid"', '"toy/catch"', '"first"', '"playvirtual"', "2", "40", '"rl"', "[[row]]", "options"]
    )
    file.write_text(text.replace(target, value, 1))
    return f"{target} is {value[:40]}"
