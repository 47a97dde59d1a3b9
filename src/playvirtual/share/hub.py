"""Trained agents on a model hub, through the client of huggingface-hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playvirtual import files
from playvirtual.api import RunOrPath, export, open_run
from playvirtual.calls import as_path, explained
from playvirtual.errors import InputError, install_hint, shown, shown_text
from playvirtual.files import RECORD_BYTES
from playvirtual.runs.agents import POLICY_FILES, WEIGHTS
from playvirtual.runs.checkpoint import MANIFEST
from playvirtual.runs.folder import CONFIG
from playvirtual.share.card import CARD, FILM, export_with_card

PULLED = (CONFIG, MANIFEST, *POLICY_FILES)  # safetensors and JSON; nothing else of a repository is ever fetched
PUSHED = (*PULLED, CARD, f"{FILM}.mp4", f"{FILM}.gif", "policy.pt", "policy.onnx")
MOST_BYTES = 2**31  # of the weights of a foreign agent
LOG_IN = "allowed: after `hf auth login`, or with a token in the variable HF_TOKEN"


@explained
def push(
    path: RunOrPath,
    repo: str,
    *,
    private: bool = False,
    episodes: int | None = None,
    trust_env: bool = False,
) -> str:
    """Uploads an agent with its model card to the repository `user/name`, made if it is missing; returns its address.

    An export that has a card is uploaded as it is. Of any other one, and of a run, an export with a card is made
    first, for which the agent plays `episodes` (see `export_with_card`).
    """
    hub = _client()
    folder = open_run(path)
    with _in_one_line(repo):
        hub.utils.validate_repo_id(repo)
    if hub.get_token() is None:
        raise InputError(f"hub: not logged in; {LOG_IN}")
    if folder.is_export and files.is_file(folder.path / CARD, "run"):
        return _upload(hub, folder.path, repo, private=private)
    with tempfile.TemporaryDirectory() as scratch:
        made = export_with_card(path, Path(scratch) / "agent", episodes=episodes, trust_env=trust_env)
        return _upload(hub, made, repo, private=private)


def _upload(hub: Any, folder: Path, repo: str, *, private: bool) -> str:
    """Uploads the files of an export, and nothing else that may lie in its folder."""
    with _in_one_line(repo):
        api = hub.HfApi(library_name="playvirtual")
        address = api.create_repo(repo, private=private, exist_ok=True)
        operations = [
            hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=files.read(folder / name, "run"))
            for name in PUSHED
            if files.is_file(folder / name, "run")
        ]
        api.create_commit(repo, operations, commit_message="Upload an agent of playvirtual")
    return str(address)


@explained
def pull(repo: str, out: str | Path, *, revision: str | None = None) -> Path:
    """Downloads the agent of the repository `user/name` into the new folder `out`, which `load` and `evaluate` take.

    What a repository holds is not trusted: only configuration, weights and checksums are fetched, as JSON and
    safetensors, and what cannot be loaded is not written. No environment is made.
    """
    hub = _client()
    if files.kind(as_path("out", out), "out") is not None:
        raise InputError(f"out: {str(out)!r} exists already; allowed: a new folder")
    with tempfile.TemporaryDirectory() as scratch:
        with _in_one_line(repo):
            for name in PULLED:
                about = hub.get_hf_file_metadata(hub.hf_hub_url(repo, name, revision=revision))
                revision = about.commit_hash  # all files of one commit, whatever is pushed meanwhile
                limit = MOST_BYTES if name == WEIGHTS else RECORD_BYTES
                if about.size is None or about.size > limit:
                    raise InputError(f"hub: {name} of {shown(repo)} has {about.size} bytes; allowed: {limit} or less")
                hub.hf_hub_download(repo, name, revision=revision, local_dir=scratch)
        return export(Path(scratch), out)


def _client() -> Any:
    """The client's package; an InputError where it is not installed."""
    if find_spec("huggingface_hub") is None:
        raise InputError(f"hub: huggingface-hub is not installed; {install_hint('hub')}")
    import_module("huggingface_hub.utils").disable_progress_bars()
    return import_module("huggingface_hub")


@contextmanager
def _in_one_line(repo: str) -> Iterator[None]:
    """Turns what the client raises into an InputError of one line."""
    errors: Any = import_module("huggingface_hub.errors")
    try:
        yield
    except InputError:
        raise
    except errors.HFValidationError:
        raise InputError(f"hub: {shown(repo)} is not allowed; allowed: user/name, as on the hub") from None
    except errors.GatedRepoError:
        raise InputError(f"hub: {shown(repo)} is open to some users alone; {LOG_IN}") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"hub: there is no repository {shown(repo)}, or it is private; {LOG_IN}") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"hub: {shown(repo)} has no such revision; allowed: a branch, a tag or a commit") from None
    except errors.EntryNotFoundError:
        raise InputError(f"hub: {shown(repo)} has no agent; allowed: what `playvirtual push` uploaded") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise InputError(f"hub: no right to write to {shown(repo)} ({status}); {LOG_IN}") from None
        raise InputError(f"hub: {shown(repo)}: {_text(error)}") from None
    except Exception as error:  # of the network, whose classes depend on the client's version
        raise InputError(f"hub: {shown(repo)} cannot be reached: {_text(error)}") from error


def _text(error: Exception) -> str:
    return shown_text(" ".join(f"{type(error).__name__}: {error}".split()))
