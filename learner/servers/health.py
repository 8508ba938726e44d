"""Is a server dead, hung or merely busy? A judgement on what was seen of it, without a clock or a socket."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Health:
    """What the looks at one server came to. ``now`` and all times are seconds of one monotonic clock.

    limit_s: silence, or requests that run without a token, is borne for so long.
    """

    limit_s: float
    answered: float
    moved: float
    refused: bool = False
    tokens: float = 0.0
    restarted: bool = False

    @classmethod
    def unseen(cls, limit_s: float, now: float) -> Health:
        return cls(limit_s, now, now)

    def answer(self, now: float, tokens: float, running: float, generating: bool) -> None:
        """It answered. tokens: generated since its start; running: requests under way.

        generating: nobody holds it up on purpose, as a push does. One that hangs is not
        well again because a push was tried on it, only by a token.
        """
        self.restarted = tokens < self.tokens
        if tokens != self.tokens or not running or not (generating or self._stalled(now)):
            self.moved = now
        self.answered, self.tokens, self.refused = now, tokens, False

    def no_answer(self, refused: bool) -> None:
        """It did not. refused: nobody listens there, so nothing is to be waited for."""
        self.refused = refused

    def silence(self, now: float) -> float:
        """Seconds since its last answer."""
        return now - self.answered

    def problem(self, now: float) -> str | None:
        """Why it is to get no requests, in words; None while it is well, or only slow."""
        if self.refused:
            return "it refuses connections: not running, or just starting"
        if self.silence(now) > self.limit_s:
            return f"it has not answered for {self.silence(now):.0f} s"
        if self._stalled(now):
            return f"it has generated nothing for {now - self.moved:.0f} s, though requests run"
        return None

    def _stalled(self, now: float) -> bool:
        return now - self.moved > self.limit_s
