"""Who may come in: the address that the gateway binds to, and the keys that it lets through."""

from __future__ import annotations

import logging

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from configs.schema import GatewayConfig
from configs.security import is_loopback
from protocol.keys import DASHBOARDS, KeysError, LearnerKeys

log = logging.getLogger("rollway.gateway")

_DOMAIN = "rollway"


class AccessError(RuntimeError):
    """The gateway must not be opened like this; the text tells what to do."""


def open_door(context: zmq.Context, socket: zmq.Socket, config: GatewayConfig) -> Admission | None:
    """Make ``socket``, which is about to be bound, safe for its address.

    Returns what checks keys, to be stopped before ``context`` is; None where there are no
    keys. Raises ``AccessError`` for a public address without keys, ``KeysError`` for bad ones.
    """
    if config.keys is None:
        if not is_loopback(config.host) and not config.insecure:
            raise AccessError(
                f"gateway.host {config.host} can be reached by other machines: make keys with `python run.py --role "
                "keygen` and set gateway.keys=keys, or, on a network where everybody may steer the run, "
                "set gateway.insecure=true"
            )
        return None
    keys = LearnerKeys.load(config.keys)
    admission = Admission(context, keys)
    keys.apply(socket)
    # Without its domain enforced libzmq would let every key in should the authenticator be gone.
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    admission.start()
    return admission


def is_dashboard(frame: zmq.Frame) -> bool:
    """Whether a message came with a dashboard's key: such a peer may look, and nothing else."""
    try:
        return str(frame.get("User-Id")).startswith(f"{DASHBOARDS}/")
    except zmq.ZMQError:  # no keys on this gateway
        return False


class Admission(ThreadAuthenticator):
    """Lets in the public keys that lie in the learner's keys folder at that moment.

    A key removed there cannot come in again; a connection that it has is not cut.
    """

    def __init__(self, context: zmq.Context, keys: LearnerKeys) -> None:
        super().__init__(context, log=log)
        self._keys = keys
        self._allowed_keys = keys.allowed()
        self.configure_curve_callback(_DOMAIN, self)

    def callback(self, domain: str, key: bytes) -> bool:
        """pyzmq asks this for every handshake; ``key`` is Z85 text."""
        try:
            self._allowed_keys = self._keys.allowed()
        except KeysError as error:  # a file that is being written, or a bad one: the others stay as they were
            log.error("keys folder: %s", error)
        return z85.decode(key) in self._allowed_keys

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Comes with every message of the peer."""
        return self._allowed_keys[client_public_key]
