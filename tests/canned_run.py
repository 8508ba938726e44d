"""Stands in for ``run.py``: leaves the folder that a run leaves, at once, with scores made up from the configuration.

``CANNED_RUN`` says how it goes, as JSON: method → ``fail``, ``hang``, or ``stop`` (half way, as after Ctrl-C).
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.load import load_config
from learner.run.folder import RunFolder
from learner.run.summary import Summary


def main(overrides: list[str]) -> int:
    config = load_config(overrides=overrides)
    method = config.run.dir.name.rpartition("-seed")[0]
    how = json.loads(os.environ.get("CANNED_RUN", "{}")).get(method)
    with RunFolder.open(config, move_aside=True) as folder:
        print(f"resume={config.run.resume}", flush=True)
        if how == "fail":
            print("error: no such luck", file=sys.stderr)
            return 1
        if how == "hang":
            time.sleep(600)
        steps = config.run.steps // 2 if how == "stop" else config.run.steps
        summary = Summary()
        for _ in range(steps):
            size = config.learner.groups * config.learner.group_size
            summary.add_step({"episodes": size, "action_tokens": 1, "staleness_mean": 1.0, "staleness_max": 2})
        for version in {0, steps} - ({steps} if how == "stop" else set()):
            summary.evals += [
                {"version": version, "dataset": name, "em": (version + config.run.seed) / 100, "n": 10}
                for name in config.env.eval
            ]
        folder.write_summary(summary.as_dict({}))
    return 130 if how == "stop" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
