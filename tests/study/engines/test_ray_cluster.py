"""Connecting to a Ray cluster: tokens that are missing, wrong or right, and no cluster at all, without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from playvirtual.errors import InputError
from playvirtual.study.engines import ray_cluster

grpc = pytest.importorskip("grpc", reason="Ray's extra is not installed: pip install -e '.[ray]'")

TOKEN = "of-this-cluster"


class Head(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers as the head of a cluster does, with a token or without."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def service(self, details: Any) -> Any:
        authorization = dict(details.invocation_metadata).get("authorization")

        def answer(request: bytes, context: Any) -> bytes:
            if self.token is not None and authorization != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        known = details.method in (ray_cluster.CHECK_ALIVE, ray_cluster.CLUSTER_INFO)
        return grpc.unary_unary_rpc_method_handler(answer) if known else None


@pytest.fixture(params=["", "ray://"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serve(handler: Any) -> tuple[Any, str]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def locked() -> Iterator[str]:
    """The address of a head that asks for a token."""
    server, address = serve(Head(TOKEN))
    yield address
    server.stop(None)


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a token and an environment without Ray's variables, restored afterwards."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "RAY_USE_TLS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_missing_token_is_said_in_one_line(locked: str, scheme: str) -> None:
    with pytest.raises(InputError) as caught:
        ray_cluster.connect(scheme + locked)
    assert str(caught.value) == (
        f"address: the Ray cluster at '{scheme}{locked}' asks for a token and there is none here; allowed: the head's "
        "~/.ray/auth_token copied to this machine, or its content in RAY_AUTH_TOKEN"
    )


def test_a_wrong_token_is_said_with_its_source(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another")
    with pytest.raises(InputError, match="asks for a token and refuses that of RAY_AUTH_TOKEN; allowed: what `ray get"):
        ray_cluster.connect(locked)


def test_a_mode_that_sends_no_token_is_refused(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InputError, match="RAY_AUTH_MODE is 'disabled' here; allowed: RAY_AUTH_MODE=token"):
        ray_cluster.connect(locked)


@pytest.mark.parametrize("source", ["home", "file", "variable"])
def test_the_right_token_is_carried_along_with_its_mode(
    source: str, locked: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / (".ray/auth_token" if source == "home" else "secret")
    if source == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{TOKEN}\n")
    if source == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    ray_cluster._prepare_token(scheme + locked)
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_head_without_tokens_needs_none(scheme: str) -> None:
    server, address = serve(Head(None))
    ray_cluster._prepare_token(scheme + address)
    server.stop(None)
    assert "RAY_AUTH_MODE" not in os.environ


def test_the_recorded_cluster_of_this_machine_is_asked_too(locked: str, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(locked)
    with pytest.raises(InputError, match="asks for a token and there is none here"):
        ray_cluster.connect("auto")


def test_something_else_that_listens_is_no_head() -> None:
    class Other(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> None:
            return None

    server, address = serve(Other())
    with pytest.raises(InputError, match="is no Ray head; allowed: the HOST:PORT of one"):
        ray_cluster.connect(address)
    server.stop(None)


def test_without_a_cluster_one_is_started_here_unless_one_was_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    tried: list[str] = []

    def init(*, address: str, **_: object) -> None:
        tried.append(address)
        if address == "auto":
            raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to.")

    monkeypatch.setattr(ray, "init", init)
    ray_cluster.connect(None)
    assert tried == ["auto", "local"]
    assert capfd.readouterr().err == (
        "playvirtual: no Ray cluster runs on this machine: starting one here, which ends with the sweep; "
        "--address HOST:PORT would use another\n"
    )
    with pytest.raises(InputError, match=r"no Ray cluster at 'auto' \(Could not find any running Ray instance\); "):
        ray_cluster.connect("auto")
    assert tried == ["auto", "local", "auto"]
