"""``--role keygen``: keys for actors and dashboards on other hosts (see ``protocol.keys``)."""

from __future__ import annotations

import sys
from pathlib import Path

from configs.schema import Config
from protocol.keys import DASHBOARD, LEARNER, KeysError, make_keys

#: Where keys are put if ``gateway.keys`` does not say.
DEFAULT = Path("keys")


def main(config: Config) -> int:
    """Make the keys that are missing in ``gateway.keys`` and say where each folder belongs. Prints no key."""
    keys, actor = config.gateway.keys or DEFAULT, config.gateway.key
    try:
        made = make_keys(keys, actor)
    except (KeysError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for folder in made:
        print(f"made {folder}")
    if not made:
        print(f"all keys are there already; gateway.key=NAME makes one for a further host in {keys}")
    where = "every host that runs actors" if actor == "actor" else f"the host {actor}"
    print(
        f"{keys / LEARNER}  stays on the learner's host; whoever has it can pose as the learner\n"
        f"{keys / actor}  copy to {keys} on {where}\n"
        f"{keys / DASHBOARD}  copy to where somebody watches from; it allows to look, nothing else\n"
        f"Copy by a way that nobody listens to (scp -pr), then start each role with gateway.keys={keys}"
        f"{'' if actor == 'actor' else f', the actors there also with gateway.key={actor}'}.\n"
        f"To shut a key out, remove its file from {keys / LEARNER}/actors or dashboards and restart the learner."
    )
    return 0
