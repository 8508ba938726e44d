"""Rollway's one entry point: ``python run.py --role ROLE [--config FILE] [section.field=value ...]``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

#: role → (module with ``main(config) -> exit code``, what it does). Imported only when chosen,
#: so that an actor loads no torch and a dashboard no server.
ROLES = {
    "local": ("learner.local", "start server, learner and actors on this machine and show the dashboard (default)"),
    "learner": ("learner.main", "train: gateway, DeepSpeed engine, weight pushes"),
    "actor": ("actors.main", "drive episodes for the learner at gateway.host:gateway.port"),
    "server": ("learner.servers.serving", "run one vLLM server with Rollway's flags"),
    "retriever": ("tools.retrieval.main", "build a search index over retriever.corpus and serve it to actors"),
    "dashboard": ("learner.dashboard", "attach to the learner at gateway.host:gateway.port, or play a run back: [RUN]"),
    "eval": ("learner.evaluation.main", "score model.path, a checkpoint or an endpoint on the eval data sets"),
    "chat": ("learner.chat", "talk to the agent at model.path in the terminal and see its tool calls"),
    "keygen": ("learner.keygen", "make the keys that actors and dashboards on other hosts need"),
    "report": ("learner.report", "write what a run did as one HTML file; of several runs, compared: RUN [RUN …]"),
    "browse": ("learner.browse", "read a run's recorded episodes: RUN [FILTER …]"),
    "replay": ("learner.replay", "train on a run's recorded groups again: RUN [VERSION] [section.field=value …]"),
    "warmstart": ("learner.warmstart", "make the built-in policies anew by supervised training"),
}

#: Roles that read finished or running runs: their ``main(words, dry_run)`` takes folders, not a configuration.
READERS = {"report", "browse", "replay"}

#: Roles that may go on with a run.
TRAINERS = {"local", "learner"}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Rollway trains tool-calling LLM agents with reinforcement learning, asynchronously.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="roles:\n" + "\n".join(f"  {role:<10} {text}" for role, (_, text) in ROLES.items()) + "\n\nexamples:\n"
        "  python run.py                                  train the built-in agent, here, now\n"
        "  python run.py staleness=0 run.dir=runs/sync    the same in lock-step\n"
        "  python run.py --role eval model.path=runs/quickstart/export\n"
        "  python run.py --resume run.steps=60            go on with it, up to version 60\n"
        "  python run.py --role report runs/quickstart    the run's story, in one HTML file\n"
        "  python run.py --role browse runs/quickstart 'reward<0.5 dataset:hotpot'\n"
        "  python run.py --config configs/hotpotqa-qwen2.5-3b.yaml --dry-run\n\n"
        "every option with its meaning: configs/schema.py",
    )
    parser.add_argument("--role", choices=ROLES, default="local", metavar="ROLE", help="one of the roles below")
    parser.add_argument("--config", metavar="FILE", help="YAML preset (default: configs/quickstart.yaml)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in run.dir (run.resume=true), under its own configuration unless --config is given",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # the DeepSpeed launcher adds it
    parser.add_argument("overrides", nargs="*", metavar="section.field=value", help="options to change")
    return parser.parse_intermixed_args(argv)  # options may stand anywhere among the words


def resumed(preset: str | None, overrides: list[str]) -> tuple[Path | str | None, list[str]]:
    """(preset, overrides) to go on with: those given; without a preset, the run's own configuration where it has one."""
    from configs.load import load_config

    chosen = [word for word in overrides if word.partition("=")[0].strip() == "run.dir"]
    folder = load_config(preset, chosen).run.dir
    own = folder / "config.yaml"
    if preset is None and own.is_file():
        preset = own
    return preset, [*overrides, f"run.dir={folder}", "run.resume=true"]


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    plays_back = args.role == "dashboard" and bool(args.overrides) and "=" not in args.overrides[0]
    if args.role in READERS or plays_back:
        if args.config or args.resume:
            flag = "--config" if args.config else "--resume"
            print(f"error: {flag} is not for --role {args.role}: it reads run folders", file=sys.stderr)
            return 2
        module = "learner.dashboard.replay" if plays_back else ROLES[args.role][0]
        return import_module(module).main(args.overrides, args.dry_run)
    if args.resume and args.role not in TRAINERS:
        print(f"error: --resume is not for --role {args.role}: local and learner go on with a run", file=sys.stderr)
        return 2
    from configs.load import ConfigError, dump_config, load_config

    try:
        preset, overrides = resumed(args.config, args.overrides) if args.resume else (args.config, args.overrides)
        config = load_config(preset, overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.dry_run:
        print(dump_config(config), end="")
        return 0
    try:
        return import_module(ROLES[args.role][0]).main(config)
    except KeyboardInterrupt:  # of a role that has nothing to put in order
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
