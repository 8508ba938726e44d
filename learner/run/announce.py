"""What a run is, where its parts are, and what comes next: the lines that a person reads as it starts."""

from __future__ import annotations

from configs.schema import Config
from learner.run.folder import RunFolder
from learner.servers.serving import server_urls


def announcement(config: Config, folder: RunFolder, local: bool = False) -> list[str]:
    """local: servers and actors are started beside the learner."""
    run, learner, gateway = config.run, config.learner, config.gateway
    mode = "lock-step" if config.staleness == 0 else f"staleness of at most {config.staleness}"
    lines = [
        f"run {folder.path.name}: {config.model.path}, up to version {run.steps}, a step of {learner.groups} groups × "
        f"{learner.group_size} episodes, {mode}",
        f"folder {folder.path}, logs in {folder.logs}" if local else f"folder {folder.path}",
        f"servers {', '.join(server_urls(config))}" + (" (started here)" if local and not config.server.urls else ""),
        f"gateway tcp://{gateway.host}:{gateway.port}"
        + (f", {config.actor.count} actors (started here)" if local else ": start actors with run.py --role actor"),
        f"dashboard, from another terminal: python run.py --role dashboard{_elsewhere(config)}",
    ]
    if config.metrics.port:
        lines.append(f"figures for Prometheus at http://{config.metrics.host}:{config.metrics.port}/metrics")
    return [*lines, f"next: {_next(config, local)}"]


def _elsewhere(config: Config) -> str:
    """The options that a dashboard needs to find this learner."""
    defaults = type(config.gateway)()
    names = ("host", "port", "keys")
    changed = {name: value for name in names if (value := getattr(config.gateway, name)) != getattr(defaults, name)}
    return "".join(f" gateway.{name}={value}" for name, value in changed.items())


def _next(config: Config, local: bool) -> str:
    load = f"the learner loads its model and waits for a server, at most {config.server.start_timeout_s:.0f} s"
    if local and not config.server.urls:
        load = "servers and learner load the model (half a minute for the built-in one, minutes for a large one)"
    if config.run.resume:
        return f"{load}, then training goes on from the last checkpoint"
    questions = config.eval.final_size * len(config.env.eval)
    names = [*(baseline.name for baseline in config.baselines), "version 0"]
    scored = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} scored"
    return f"{load}, then {scored} on {questions} held-out questions, then training begins"
