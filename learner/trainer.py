"""The training loop: batch → advantages → update → version + 1 → weights to the servers.

Everything that waits has a time limit, and what has to be atomic is: a step's weights,
optimizer, random state and consumed groups belong to one checkpoint.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from configs.schema import Config
from learner.baselines import score_baselines
from learner.evaluate import Evaluator
from learner.gateway.router import Gateway, Interrupted
from learner.policy.checkpoint import load_checkpoint, save_checkpoint
from learner.policy.critic import Critic
from learner.policy.engine import PolicyEngine
from learner.resampling import take_groups
from learner.run import checkpoints
from learner.run.episodes import episode_record, group_records
from learner.run.folder import RunFolder
from learner.run.memory import given_back_when_idle
from learner.run.resume import check_ledger
from learner.run.summary import Summary
from learner.run.telemetry import batch_record
from learner.run.transcript import Transcriber
from learner.update import Update, update
from learner.weights.push import PushReport, WeightPusher
from learner.weights.transport import in_thread
from protocol.trajectory import Group, Trajectory

log = logging.getLogger("rollway.learner")

#: Episodes of an evaluation that the learner scores again.
EXACTNESS_EPISODES = 32

#: Episodes of an evaluation that are kept with their tokens, spread over the data sets.
EVAL_EPISODES_KEPT = 24


class Trainer:
    """Owns the order of events; each part owns its own state."""

    def __init__(
        self,
        config: Config,
        engine: PolicyEngine,
        critic: Critic | None,
        gateway: Gateway,
        pusher: WeightPusher,
        folder: RunFolder,
    ):
        self.config = config
        self.engine = engine
        self.critic = critic
        self.gateway = gateway
        self.pusher = pusher
        self.folder = folder
        self.summary = Summary()
        self.evaluator = Evaluator(config, gateway)
        self.transcriber = Transcriber(config.model.path)
        self.version = 0
        self._saved: int | None = None  # version of the newest checkpoint
        self.stop_requested = False
        self._push: Future[PushReport] | None = None

    def run(self) -> None:
        """Everything from the first push to the export; ends early, but in good order, after ``request_stop``."""
        try:
            if self._restore():
                self._push_now(self.engine.snapshot())
            else:
                self._first_scores()
            self._train()
            self._finish_push()
            self._checkpoint()
            self._evaluate(self.config.eval.final_size)
        except Interrupted:
            log.info("asked to stop at version %d", self.version)
            self._checkpoint()
            self._finish_push()
        with self._phase("export"):
            self.engine.export(self.folder.export)

    def _first_scores(self) -> None:
        """The baselines, whose weights the servers hold for that long, then the policy before training."""
        self.summary.baselines = score_baselines(self.config, self._push_now, self.evaluator)
        self._push_now(self.engine.snapshot())
        self._evaluate(self.config.eval.final_size)

    def _train(self) -> None:
        limit = self.config.run.max_minutes
        began = time.monotonic()
        self.gateway.pause_training(False)
        self.summary.training_started()
        try:
            while self.version < self.config.run.steps:
                self._step()
                if limit and time.monotonic() - began > 60 * limit:
                    log.info("run.max_minutes is over at version %d", self.version)
                    break
        finally:
            self.summary.training_ended()
            self.gateway.pause_training(True)

    def request_stop(self) -> None:
        """Finish the update at hand, save and return from ``run``. Safe in a signal handler."""
        self.stop_requested = True
        self.gateway.interrupt()
        self.pusher.interrupt()

    # ── one step ─────────────────────────────────────────────────────────────

    def _step(self) -> None:
        config, began = self.config, time.monotonic()
        seconds: dict[str, float] = {}
        with self._phase("wait", seconds), given_back_when_idle():
            groups, in_vain = take_groups(
                config, partial(self.gateway.take_batch, timeout_s=config.gateway.batch_timeout_s)
            )
        record = batch_record(groups + in_vain, self.version) | {"groups_in_vain": len(in_vain)}
        with self._phase("update", seconds):
            done = update(config, self.engine, self.critic, groups, self.version)
            record |= done.metrics
        self.version += 1
        self.gateway.commit(self.version)
        with self._phase("push", seconds):
            push = self._publish_weights()
        wall = time.monotonic() - began
        seconds["step"] = wall
        record |= {
            "step": self.version,
            "version": self.version,
            "time_s": self.summary.elapsed(),
            "seconds": seconds,
            "tokens_per_s": record["tokens"] / wall,
            "busy": seconds["update"] / wall,
        }
        if push:
            record["push"] = push.as_record()
        self._record(record, groups, done)
        if self.version % config.checkpoint.every == 0:
            self._checkpoint()
        if config.eval.every and self.version % config.eval.every == 0 and self.version < config.run.steps:
            self._evaluate(config.eval.size)

    def _publish_weights(self) -> PushReport | None:
        """Lock-step: push, then open the next version. Else open it at once and push behind the next step."""
        report = self._finish_push()
        tensors = self.engine.snapshot()
        if self.config.staleness == 0:
            report = self.pusher.push(tensors, self.version)
            self._note_push(report)
            self.gateway.set_version(self.version)
            return report
        self.gateway.set_version(self.version)
        # In a daemon thread, and never before the one before it is through.
        self._push = in_thread(partial(self.pusher.push, tensors, self.version))
        return report

    def _push_now(self, tensors: list[tuple[str, Tensor]]) -> list[str]:
        """Push and wait; returns the servers that have these weights now."""
        with self._phase("push"):
            report = self.pusher.push(tensors, self.version)
        self._note_push(report)
        if self.stop_requested:  # it may have been given up for that
            raise Interrupted
        self.gateway.set_version(self.version)
        return self.pusher.current_servers()

    def _finish_push(self) -> PushReport | None:
        if self._push is None:
            return None
        report = self._push.result(timeout=3 * self.config.weights.timeout_s)
        self._push = None
        self._note_push(report)
        return report

    def _note_push(self, report: PushReport) -> None:
        self.summary.add_push(report)
        self.gateway.set_servers(self.pusher.current_servers())
        for url, error in report.errors().items():
            log.error("server %s is excluded until it takes weights again: %s", url, error)

    # ── state ────────────────────────────────────────────────────────────────

    def _restore(self) -> bool:
        state = load_checkpoint(self.engine, self.folder.checkpoints, self.critic)
        if state is None:
            # A run that died before its first checkpoint starts anew, with the groups that it had collected.
            self.gateway.rollback(0)
            self.folder.truncate_metrics(-1)
            return False
        self.version = self._saved = state["version"]
        check_ledger(self.folder.path, self.version)
        self.summary = Summary.restore(state["summary"])
        self.gateway.publish("run", {"started_at": time.time() - self.summary.elapsed()})
        undone = self.gateway.rollback(self.version)
        self.folder.truncate_metrics(self.version)
        for record in self.folder.read_metrics():
            if "eval" not in record:
                self.gateway.append_history(record)
        self._publish_summary_evals()
        waiting = self.gateway.snapshot()["queue"]["waiting"]
        log.info("resumed at version %d: %d finished groups wait, %d units are undone", self.version, waiting, undone)
        return True

    def _checkpoint(self) -> None:
        with self._phase("checkpoint"):
            root, keep = self.folder.checkpoints, self.config.checkpoint.keep
            extra = {"version": self.version, "summary": self.summary.state()}
            if self._saved == self.version:  # the weights are there already, what was measured since is not
                checkpoints.amend(checkpoints.path_of(root, self.version), extra=extra)
                return
            oldest = save_checkpoint(self.engine, root, self.version, extra, keep, self.critic)
            self._saved = self.version
            # A checkpoint is kept with the groups of the steps after it: to fall back to it, and to replay them.
            if len(checkpoints.steps(root)) == keep:
                self.gateway.checkpointed(oldest)

    # ── what people see ──────────────────────────────────────────────────────

    @contextmanager
    def _phase(self, name: str, seconds: dict[str, float] | None = None):
        self.gateway.publish(
            "run", {"phase": name, "phase_since": time.time(), "step": self.version, "version": self.version}
        )
        began = time.monotonic()
        try:
            yield
        finally:
            if seconds is not None:
                seconds[name] = time.monotonic() - began

    def _record(self, record: dict[str, Any], groups: list[Group], done: Update) -> None:
        self.summary.add_step(record)
        self.folder.log(record)
        log.info("step %d: reward %.3f, %.1f s", record["step"], record["reward"], record["seconds"]["step"])
        self.gateway.append_history(record)
        episodes = [t for group in groups for t in group.trajectories]
        kept = episodes[:: max(1, len(episodes) // max(1, self.config.log.trajectories))][
            : self.config.log.trajectories
        ]
        if kept:
            self.folder.write_trajectories(self.version, [self.transcriber.text(t) for t in kept])
            self.gateway.publish("latest", {"step": self.version, **self.transcriber.view(kept[-1])})
            # One whole group a step, each place of the batch in turn: what a person reads is no selection of ours.
            place = self.version % len(groups)
            first = sum(len(group.trajectories) for group in groups[:place])
            proximal = [done.proximal.get(first + i) for i in range(len(groups[place].trajectories))]
            self.folder.log_episodes(
                group_records(groups[place], done.advantages[place], self.version, self.transcriber.decode, proximal)
            )

    def _evaluate(self, size: int) -> None:
        with self._phase("eval"):
            self._finish_push()
            records, episodes = self.evaluator.score(self.version, size)
        self.summary.evals += records
        self._check_exactness(episodes[:EXACTNESS_EPISODES])
        self._publish_evals(records)
        self.folder.write_trajectories(self.version, [self.transcriber.text(t) for t in episodes[:8]], kind="eval")
        if self.config.log.trajectories:
            decode, kept = self.transcriber.decode, episodes[:: max(1, len(episodes) // EVAL_EPISODES_KEPT)]
            self.folder.log_episodes(
                [episode_record(t, self.version, "eval", t.facts["task_id"], decode) for t in kept[:EVAL_EPISODES_KEPT]]
            )

    def _check_exactness(self, episodes: list[Trajectory]) -> None:
        """Score tokens of this very version: whatever differs from μ now is the engines' doing, not the policy's."""
        scored = [t for t in episodes if t.oldest_version == self.version]
        if not scored:
            return
        gaps = [
            np.abs(logprobs - t.behaviour_logprobs)[t.action_mask.astype(bool)]
            for t, logprobs in zip(scored, self.engine.score(scored, temperature=1.0), strict=True)
        ]
        found = np.concatenate(gaps)
        self.summary.add_mismatch(found.tolist())
        log.info("|log π − log μ| at version %d: mean %.1e, max %.1e", self.version, found.mean(), found.max())

    def _publish_evals(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.folder.log({"eval": record, "step": self.version})
            who = record.get("baseline") or f"version {record['version']}"
            log.info("eval %s, %s: em %.3f (n %d)", who, record["dataset"], record.get("em", 0.0), record["n"])
        self._publish_summary_evals()

    def _publish_summary_evals(self) -> None:
        self.gateway.publish("evals", self.summary.baselines + self.summary.evals)
