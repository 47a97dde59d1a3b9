"""Hosts on one machine that are really apart: network, processes, names, shared memory and home of their own.

A host is a process in Linux namespaces of its own, connected to the others by a switch (a bridge in a namespace of its
own) and sharing nothing with them but the file system. It takes root, and the programs `ip`, `unshare` and `nsenter`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from playvirtual.errors import InputError

PROGRAMS = ("ip", "unshare", "nsenter")
SWITCH = ("--net",)
APART = ("--net", "--mount", "--pid", "--uts", "--ipc", "--mount-proc")
# What hosts must not share although the file system is one: Ray's files and sockets, and shared memory.
OWN_FOLDERS = ("/tmp/ray", "/dev/shm")
START_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


class Network:
    """A switch and the hosts at it; leaving the block ends all of them with everything that runs there."""

    def __init__(self, folder: Path) -> None:
        check_permitted()
        self.folder, self.hosts = folder, list[Host]()
        self._switch = _Namespaces(SWITCH, "ip link set lo up; ip link add br0 type bridge; ip link set br0 up")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts:
            host.kill()
        self._switch.kill()

    def host(self, name: str) -> Host:
        """A new host with the next address, connected to the switch."""
        number = len(self.hosts) + 1
        host = Host(name, f"10.77.0.{number}", self.folder / "homes" / name)
        self.hosts.append(host)
        _run("ip", "link", "add", f"pv{number}", "type", "veth", "peer", "name", f"pvs{number}")
        _run("ip", "link", "set", f"pvs{number}", "netns", str(self._switch.pid))
        _run("ip", "link", "set", f"pv{number}", "netns", str(host.pid))
        self._switch.run("ip", "link", "set", f"pvs{number}", "master", "br0", "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", f"pv{number}")
        host.run("ip", "link", "set", f"pv{number}", "up")
        host.run("ip", "route", "add", "default", "via", "10.77.0.254")  # a host finds its own address by its route
        return host

    def unplug(self, host: Host) -> None:
        """Takes the host's cable out: it keeps running, and nothing that it sends arrives."""
        self._switch.run("ip", "link", "set", f"pvs{self.hosts.index(host) + 1}", "down")


class Host:
    """One host: its address, its home, and programs started there."""

    def __init__(self, name: str, address: str, home: Path) -> None:
        self.name, self.address, self.home = name, address, home
        home.mkdir(parents=True)
        for path in OWN_FOLDERS:
            Path(path).mkdir(exist_ok=True)
        own = " && ".join(f"mount -t tmpfs tmpfs {path}" for path in OWN_FOLDERS)
        self._namespaces = _Namespaces(APART, f"mount --make-rprivate / && {own} && hostname {name}")
        self.pid = self._namespaces.pid

    def start(self, words: Sequence[str], more: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen:
        """Starts a program there, with the environment of this process but for the home, and `more`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment = {**kept, "HOME": str(self.home), **(more or {})}
        return subprocess.Popen(["nsenter", f"--target={self.pid}", "--all", *words], env=environment, **options)

    def run(self, *words: str, more: Mapping[str, str] | None = None, seconds: float = 60.0) -> tuple[int, str]:
        """Runs a program there; returns its exit code and all it printed."""
        process = self.start(words, more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.returncode, said

    def kill(self) -> None:
        """Kills the first process, and with it all others; their connections are closed, as far as the cable is in."""
        self._namespaces.kill()


class _Namespaces:
    """New namespaces, alive as long as the one process that keeps them."""

    def __init__(self, kinds: Sequence[str], set_up: str) -> None:
        words = ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", f"{set_up}; echo ready; exec sleep infinity"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_end_with_parent
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != "ready":
            self._process.kill()
            self._process.wait()
            raise InputError(f"hosts: Linux namespaces are not permitted here ({said}); allowed: root on Linux")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def run(self, *words: str) -> None:
        _run("nsenter", f"--target={self.pid}", "--net", *words)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(START_SECONDS)


def _end_with_parent() -> None:
    """Called in the child: when this program is killed, its hosts go with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def check_permitted() -> None:
    """Raises an `InputError` unless this process may make hosts."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not hasattr(os, "geteuid") or os.geteuid() != 0:
        reason = f"no {', '.join(missing)}" if missing else "not root"
        raise InputError(f"hosts: Linux namespaces cannot be made here ({reason}); allowed: root on Linux, iproute2")


def wait_until(true: Callable[[], object], what: str, seconds: float) -> float:
    """Waits for a condition, at most so many seconds; returns how long it took."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
