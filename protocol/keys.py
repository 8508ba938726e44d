"""CURVE keys: how the learner, its actors and its dashboards know each other across hosts.

The folder ``keys`` has one part for each place, made by ``--role keygen``:

    learner/    learner.key_secret, and the public keys of whoever may come in:
                actors/NAME.key, dashboards/NAME.key
    NAME/       NAME.key_secret and learner.key: for the hosts of that actor or dashboard

The files are pyzmq's certificates. No secret is ever printed or sent.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85

LEARNER = "learner"
DASHBOARD = "dashboard"
#: Roles that a public key can be allowed in, each with its folder under ``learner/``.
ACTORS, DASHBOARDS = "actors", "dashboards"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class KeysError(RuntimeError):
    """Keys that are missing, unreadable or open to others; the text tells what to do."""


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Keys of an actor or dashboard, and the learner's public one. Z85 text; not shown by ``repr``."""

    learner: bytes
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def load(cls, keys: Path, name: str) -> ClientKeys:
        """The part ``name`` of the folder ``keys``. Raises ``KeysError``."""
        public, secret = _read_secret(keys / name / f"{name}.key_secret", f"copy {keys / name} from the learner's host")
        learner, _ = _read(keys / name / f"{LEARNER}.key", f"copy {keys / name} from the learner's host")
        return cls(learner, public, secret)

    def apply(self, socket: zmq.Socket) -> None:
        """Make a socket that is about to connect speak CURVE."""
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = self.learner, self.public, self.secret


@dataclass(frozen=True, slots=True)
class LearnerKeys:
    """The learner's own keys and the folder of those that it lets in."""

    folder: Path
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def load(cls, keys: Path) -> LearnerKeys:
        """The learner's part of the folder ``keys``. Raises ``KeysError``."""
        folder = keys / LEARNER
        public, secret = _read_secret(
            folder / f"{LEARNER}.key_secret", f"make keys with `python run.py --role keygen gateway.keys={keys}`"
        )
        return cls(folder, public, secret)

    def apply(self, socket: zmq.Socket) -> None:
        """Make a socket that is about to be bound accept CURVE only."""
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret

    def allowed(self) -> dict[bytes, str]:
        """Public key (32 raw bytes) → "actors/NAME" or "dashboards/NAME", as the files are now.

        Raises ``KeysError`` for a file that is no key.
        """
        found = {}
        for role in (DASHBOARDS, ACTORS):
            for path in sorted((self.folder / role).glob("*.key")):
                public, _ = _read(path, "remove it, or put a public key made by --role keygen there")
                found[z85.decode(public)] = f"{role}/{path.stem}"
        return found


def make_keys(keys: Path, actor: str) -> list[Path]:
    """Make what is missing for the learner, a dashboard and the actors' key ``actor``; existing keys stay.

    Returns the folders that were made. Raises ``KeysError`` for a name that cannot be a file's.
    """
    if not _NAME.fullmatch(actor) or actor in (LEARNER, DASHBOARD):
        raise KeysError(f"gateway.key {actor!r}: letters, digits, dot, dash and underscore, and not {LEARNER!r}")
    before = os.umask(0o077)  # nobody but the owner, from the first moment on
    try:
        made = [] if (keys / LEARNER / f"{LEARNER}.key_secret").exists() else [_make(keys, LEARNER)]
        for role, name in ((ACTORS, actor), (DASHBOARDS, DASHBOARD)):
            if not (keys / name / f"{name}.key_secret").exists():
                made.append(_make(keys, name))
                allow = keys / LEARNER / role
                allow.mkdir(parents=True, exist_ok=True)
                (keys / name / f"{name}.key").replace(allow / f"{name}.key")
                shutil.copyfile(keys / LEARNER / f"{LEARNER}.key", keys / name / f"{LEARNER}.key")
        return made
    finally:
        os.umask(before)


def _make(keys: Path, name: str) -> Path:
    folder = keys / name
    folder.mkdir(parents=True, exist_ok=True)
    zmq.auth.create_certificates(folder, name)
    return folder


def _read_secret(path: Path, remedy: str) -> tuple[bytes, bytes]:
    public, secret = _read(path, remedy)
    if secret is None:
        raise KeysError(f"{path} has no secret key: {remedy}")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeysError(f"{path} can be read by others: chmod 600 {path}")
    return public, secret


def _read(path: Path, remedy: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
        sizes = {len(z85.decode(key)) for key in (public, secret) if key is not None}
    except OSError:
        raise KeysError(f"{path} is not there or cannot be read: {remedy}") from None
    except Exception:  # z85 raises what it likes, and its text may hold the key
        raise KeysError(f"{path} is not a key file: {remedy}") from None
    if sizes != {32}:
        raise KeysError(f"{path} is not a key file: {remedy}")
    return public, secret
