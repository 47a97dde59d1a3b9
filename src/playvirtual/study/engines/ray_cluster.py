"""The connection to a Ray cluster: its address, the token that it may ask for, or a cluster of this machine's own.

Since version 2.60 the head asks for a token wherever `ray start --head` finds one, while a program that connects to
HOST:PORT sends none unless RAY_AUTH_MODE says so, and tries in vain for some 20 seconds. So the head is asked first.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from playvirtual.errors import InputError, install_hint
from playvirtual.messages import log_to_stderr_by_default, logger

DEFAULT_PORT = 6379
CONNECT_SECONDS = 5.0
AUTH_MODE = "RAY_AUTH_MODE"
# Calls that are answered after the token has been checked: by the head, and by its server for clients (ray://).
CHECK_ALIVE, CLUSTER_INFO = "/ray.rpc.NodeInfoGcsService/CheckAlive", "/ray.rpc.RayletDriver/ClusterInfo"
NODE_SECONDS = 15  # that Ray looks for the node on this machine through which it connects

Answer = Literal["welcome", "token", "other"]


def connect(address: str | None) -> Any:
    """The package ray, connected to the cluster at `address`, at RAY_ADDRESS, or else on this machine.

    Where no cluster is named and none runs on this machine, one is started, which ends with this process. An address
    that does not answer, and a token that is missing or wrong, are an `InputError` within seconds.
    """
    chosen = address or os.environ.get("RAY_ADDRESS") or None
    if chosen is None or chosen == "auto":
        if (recorded := _recorded_address()) is not None:
            _prepare_token(recorded)
    elif chosen != "local":
        _check_reachable(chosen)
        _prepare_token(chosen)
    # After RAY_AUTH_MODE is set: Ray reads it while it is imported.
    os.environ.setdefault("RAY_gcs_rpc_server_connect_timeout_s", str(int(CONNECT_SECONDS)))
    os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", str(NODE_SECONDS))
    ray = _import_ray()
    try:
        _init(ray, chosen or "auto")
    except _NotFound:
        if chosen is not None:
            raise
        log_to_stderr_by_default()
        logger.info(
            "no Ray cluster runs on this machine: starting one here, which ends with the sweep; "
            "--address HOST:PORT would use another"
        )
        _init(ray, "local")
    return ray


class _NotFound(InputError):
    """No cluster answers at the address."""


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(f"engine: 'ray' needs the package ray; {install_hint('ray')}") from None
    return ray


def _init(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
        if isinstance(error, ConnectionError) and _is_host(address):  # its head has answered
            raise InputError(
                f"address: the Ray cluster at {address!r} answers, but this machine is none of its nodes; "
                f"allowed: `ray start --address={address}` here first, or --address ray://HOST:10001"
            ) from None
        kind = _NotFound if isinstance(error, ConnectionError) else InputError
        raise kind(
            f"address: no Ray cluster at {address!r} ({reason}); start one with `ray start --head`, give --address "
            "HOST:PORT, or --address local for one on this machine that ends with the sweep"
        ) from None


def _is_host(address: str) -> bool:
    """Whether it is HOST:PORT, and no word or URL."""
    return address not in ("auto", "local") and "://" not in address


def _recorded_address() -> str | None:
    """The address of the cluster that `ray start` last recorded on this machine; None if it does not answer."""
    record = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray" / "ray_current_cluster"
    try:
        address = record.read_text().strip()
        _check_reachable(address)
    except (OSError, ValueError):
        return None
    return address


def _check_reachable(address: str) -> None:
    """Raises an `InputError` unless something listens at the address."""
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (ValueError, OverflowError):
        raise InputError(f"address: {address!r} is not allowed; allowed: HOST:PORT, ray://HOST:PORT, auto") from None
    except OSError as error:
        raise InputError(f"address: no Ray cluster at {address!r} ({error.strerror or error})") from None


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host, port) if host else (port, str(DEFAULT_PORT))


def _prepare_token(address: str) -> None:
    """Sets RAY_AUTH_MODE for a head that asks for a token; an `InputError` if the token is missing or wrong."""
    if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
        return  # asking would take the cluster's certificates; Ray has them
    answer = _ask(address)
    if answer == "welcome":
        return
    if answer == "other":
        raise InputError(f"address: what listens at {address!r} is no Ray head; allowed: the HOST:PORT of one")
    asks = f"address: the Ray cluster at {address!r} asks for a token"
    mode = os.environ.get(AUTH_MODE)
    if mode is not None and mode.lower() != "token":
        raise InputError(f"{asks} and {AUTH_MODE} is {mode!r} here; allowed: {AUTH_MODE}=token")
    token = _token()
    if token is None:
        raise InputError(
            f"{asks} and there is none here; allowed: the head's ~/.ray/auth_token copied to this machine, or its "
            "content in RAY_AUTH_TOKEN"
        )
    if _ask(address, token.value) != "welcome":
        raise InputError(
            f"{asks} and refuses that of {token.source}; allowed: what `ray get-auth-token` prints on the head"
        )
    os.environ[AUTH_MODE] = "token"  # for this process and the workers that it starts


class _Token(NamedTuple):
    value: str
    source: str


def _token() -> _Token | None:
    """The token that Ray would send, which it looks for in this order; None if there is none."""
    if value := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _Token(value, "RAY_AUTH_TOKEN")
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        value = path.read_text().strip()
    except (OSError, ValueError):
        return None
    return _Token(value, str(path)) if value else None


def _ask(address: str, token: str = "") -> Answer:
    """Whether the head at the address lets a caller with this token in, asks for one, or is no head at all."""
    try:
        import grpc
    except ImportError:
        raise InputError(f"engine: 'ray' needs the package grpcio; {install_hint('ray')}") from None
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(":".join(_host_and_port(address))) as channel:
        call = channel.unary_unary(CHECK_ALIVE if _is_host(address) else CLUSTER_INFO)
        try:
            call(b"", timeout=CONNECT_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return "token"
            strange = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED)
            return "other" if error.code() in strange else "welcome"
    return "welcome"
