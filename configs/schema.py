"""Every option of Rollway, one model a part. Nothing else is read as configuration.

Unions are told apart by ``type``. Each field's docstring is its documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from configs.agent import AgentConfig
from configs.algorithm import AlgorithmConfig
from configs.critic import CriticAdvantage, CriticConfig, critic_mistake
from configs.lora import LoraConfig
from configs.optimizer import OptimizerConfig
from configs.retriever import RetrieverConfig
from configs.section import NonNegative, Positive, Seconds, Section


class RunConfig(Section):
    dir: Path = Path("runs/quickstart")
    """Run folder: resolved config, metrics, trajectories, checkpoints, summary."""
    seed: int = Field(default=0, ge=0)
    """Seeds task order, sampling seeds and torch."""
    steps: Positive = 60
    """Policy versions to train."""
    max_minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Stop after this many minutes of training even if ``steps`` are left."""
    resume: bool = False
    """Continue the run in ``dir`` from its last checkpoint."""


class ModelConfig(Section):
    path: str = "configs/models/tiny-agent"
    """Folder (or hub name) of a causal LM that transformers loads and vLLM serves."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of learner and servers."""
    max_tokens: Positive = 1024
    """Longest episode in tokens, prompt and tool responses included."""
    tool_format: Literal["auto", "hermes", "qwen_xml", "llama3", "mistral", "pythonic"] = "auto"
    """How the model writes tool calls. auto: as its chat template shows them; Hermes where it shows none."""
    gradient_checkpointing: bool = False
    """Trade compute for memory in the learner."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the weights themselves; ``{}`` for its defaults, null for none."""


class EnvConfig(Section):
    path: str = "envs.multihop:MultiHopQA"
    """``module:Class`` of the environment; a module of yours on PYTHONPATH works too."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment's ``setup``."""
    train: list[str] = Field(default=["hotpot", "wiki2"], min_length=1)
    """Data sets whose train split is trained on."""
    eval: list[str] = Field(default=["hotpot", "wiki2", "musique"], min_length=1)
    """Data sets whose eval split is scored."""
    max_turns: Positive = 8
    """Turns of the policy after which an episode is cut."""


class SamplingConfig(Section):
    temperature: float = Field(default=1.0, gt=0)
    """Training episodes; evaluation is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    turn_tokens: Positive = 128
    """Most tokens the policy may write in one turn."""


class ActorConfig(Section):
    count: int = Field(default=2, ge=0)
    """Actor processes that ``--role local`` starts."""
    leases: Positive = 8
    """Groups one actor works on at a time."""
    heartbeat_s: Seconds = 1.0
    """Interval of heartbeats; an actor silent for 5 of them is given up."""
    request_timeout_s: Seconds = 120.0
    """One generation request, all retries included."""
    connect_timeout_s: Seconds = 60.0
    """How long an actor looks for the learner before it gives up."""
    episode_retries: int = Field(default=2, ge=0)
    """Further tries of a failed episode before its group is handed back."""


class ServerConfig(Section):
    count: Positive = 1
    """vLLM servers that ``--role local`` starts (none where ``urls`` is set)."""
    urls: list[str] = Field(default_factory=list)
    """Servers already running, e.g. http://10.0.0.5:8100; started with ``--role server``."""
    host: str = "127.0.0.1"
    insecure: bool = False
    """Let servers listen where other machines reach them: whoever does can replace the weights and run code there."""
    port: int = Field(default=8100, ge=1, le=65535)
    """Port of the first server; the next ones follow."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """KV cache on a CPU server, GiB."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    tensor_parallel: Positive = 1
    devices: list[list[int]] = Field(default_factory=list)
    """GPU ids of each server; empty on CPUs."""
    cpu_threads: str = "auto"
    """Cores of a CPU server's compute threads (VLLM_CPU_OMP_THREADS_BIND)."""
    max_num_seqs: Positive = 256
    start_timeout_s: Seconds = 600.0
    """A server that starts may take so long; ``--role local`` kills and restarts one that hangs for longer."""
    silent_s: Seconds = 30.0
    """A server that answers nothing for so long, or generates nothing though requests run, gets no more of them
    until it does again and has the current weights."""
    extra_args: list[str] = Field(default_factory=list)
    """Further arguments for vLLM's server."""


class LearnerConfig(Section):
    groups: Positive = 32
    """Groups (tasks) in one step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes of one task."""
    mini_batches: Positive = 2
    """Optimizer steps that one batch is split into."""
    micro_tokens: Positive = 16384
    """Tokens of one packed micro-batch on one rank."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    devices: list[int] = Field(default_factory=list)
    """GPU ids of the learner's ranks, on each of its hosts; empty on CPUs."""
    ranks: Positive = 1
    """Processes of the learner, on all its hosts; more than one are started by the DeepSpeed launcher."""
    hostfile: Path | None = None
    """With ``--role learner``: DeepSpeed's hostfile (``HOST slots=N`` a line) of a learner on several hosts. The first
    host has rank 0, and so the gateway; checkout, environment and ``run.dir`` are the same folders on all."""
    node: int | None = Field(default=None, ge=0)
    """This host's place in ``hostfile``, from 0: start its ranks only. Left out, all hosts are started by pdsh over ssh."""
    master_address: str | None = None
    """Where the ranks find rank 0; left out, by the name of the first host in ``hostfile``."""
    master_port: int = Field(default=29500, ge=1, le=65535)
    """Port of rank 0 where the ranks of a ``hostfile`` meet; on one machine a free one is taken."""
    cpu_threads: int = Field(default=0, ge=0)
    """Compute threads of a CPU learner; 0 leaves torch's default."""


class WeightsConfig(Section):
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: nccl where the learner has GPUs, else gloo."""
    bucket_mb: Positive = 64
    """Size of one broadcast."""
    timeout_s: Seconds = 120.0
    """One push to one server; a server that misses it is excluded until it has caught up."""
    verify: bool = False
    """Compare the server's parameters with the learner's, bit for bit, after every push."""


class GatewayConfig(Section):
    host: str = "127.0.0.1"
    """Address that the learner binds to and that actors and dashboards connect to."""
    port: int = Field(default=5600, ge=1, le=65535)
    keys: Path | None = None
    """Folder of CURVE keys made by ``--role keygen``; needed where other machines can reach ``host``."""
    key: str = "actor"
    """Name of this host's actor key in ``keys``; with ``--role keygen``, of the one to make."""
    insecure: bool = False
    """Bind to an address that other machines can reach without keys: whoever reaches it steers the run."""
    max_peers: Positive = 256
    """Actors and dashboards connected at a time."""
    buffer_mb: Positive | None = None
    """Memory for what all connections have under way; beyond it the greediest is cut. Left out: 64, or what
    two of the largest groups need."""
    lease_timeout_s: Seconds = 600.0
    """A lease not delivered after this long is void, whatever its holder says."""
    watchdog_s: Seconds = 45.0
    """When nothing has moved for so long, log and dashboard say who waits for what."""
    batch_timeout_s: Seconds = 1800.0
    """The longest wait for a batch before the learner gives up and says why."""


class CheckpointConfig(Section):
    every: Positive = 20
    """Steps between checkpoints (the last step is always kept)."""
    keep: Positive = 2


class EvalConfig(Section):
    every: int = Field(default=20, ge=0)
    """Steps between evaluations; 0 for none but the first and the last."""
    size: Positive = 100
    """Questions of each data set in an evaluation on the way."""
    final_size: Positive = 300
    """Questions of each data set before the first and after the last step, and with ``--role eval``."""
    samples: Positive = 1
    """With ``--role eval``: episodes of each question, for avg@k and pass@k."""
    temperature: NonNegative = 0.0
    """With ``--role eval`` and ``--role chat``: 0 is greedy. Evaluations of a run are always greedy."""
    output: Path | None = None
    """With ``--role eval``: JSON file of scores and outcomes; left out, a new one in runs/evaluations."""
    against: Path | None = None
    """With ``--role eval``: file of another evaluation of the same questions, to tell the difference from."""
    endpoint: str | None = None
    """With ``--role eval``: base URL of an OpenAI-compatible API to score instead, e.g. http://10.0.0.5:8000/v1."""
    endpoint_model: str | None = None
    """The endpoint's name of the model."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's key, e.g. OPENAI_API_KEY; left out, none is sent."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request to the endpoint; null leaves one out, e.g. {temperature: null}."""
    concurrency: Positive = 16
    """Episodes at a time with the endpoint."""

    @model_validator(mode="after")
    def _fits_together(self) -> EvalConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"eval.samples={self.samples} greedy samples would all be the same: set eval.temperature, e.g. to 0.7"
            )
        if (self.endpoint is None) != (self.endpoint_model is None):
            raise ValueError("eval.endpoint and eval.endpoint_model go together: set both, or neither")
        return self


class BaselineConfig(Section):
    """A policy of the same architecture, scored before training through the same path."""

    name: str
    model: str
    env: str
    args: dict[str, Any] = Field(default_factory=dict)


class LogConfig(Section):
    format: Literal["text", "json"] = "text"
    """Form of a line in the logs of learner, actors and retriever: text, or an object with time, level, logger,
    message and traceback."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of Rollway's own events that is logged. Libraries log from warning on, with debug from info on."""
    trajectories: int = Field(default=4, ge=0)
    """Readable trajectories kept of each step, and with any a group with its tokens in episodes.jsonl; 0 for none."""
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default=["tensorboard"])
    """Where the records of metrics.jsonl go as well. wandb and trackio are packages to install; each runs in a
    thread of its own, and what it does wrong is logged, never raised."""
    project: str = "rollway"
    """Project name at wandb and trackio; the run is named after its folder."""
    snapshots_s: NonNegative = 5.0
    """Seconds between two pictures of the whole system in snapshots.jsonl, which ``--role dashboard RUN`` plays back;
    at most 32 MiB, older ones are thinned. 0 for none."""


class MetricsConfig(Section):
    """Figures for Prometheus, served without a password: only on addresses that strangers cannot reach."""

    port: int = Field(default=0, ge=0, le=65534)
    """The learner's endpoint; each actor takes the first free port after it. 0 for none."""
    host: str = "127.0.0.1"
    """Address that the endpoints bind to."""


class Config(Section):
    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    env: EnvConfig = EnvConfig()
    agent: AgentConfig | None = None
    """A program of yours that plays the episodes instead of ``env``, which then only names the tasks."""
    sampling: SamplingConfig = SamplingConfig()
    actor: ActorConfig = ActorConfig()
    server: ServerConfig = ServerConfig()
    learner: LearnerConfig = LearnerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig | None = None
    """Only with ``algorithm.advantage.type`` gae or vtrace, which cannot do without; left out, its defaults."""
    staleness: int = Field(default=2, ge=0)
    """η: no token older than this many versions is trained on. 0 is lock-step."""
    weights: WeightsConfig = WeightsConfig()
    gateway: GatewayConfig = GatewayConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    baselines: list[BaselineConfig] = Field(default_factory=list)
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    retriever: RetrieverConfig = RetrieverConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if self.gateway.insecure and self.gateway.keys:
            raise ValueError("gateway.insecure and gateway.keys exclude each other: choose one")
        if self.learner.groups % self.learner.mini_batches:
            raise ValueError(
                f"learner.mini_batches ({self.learner.mini_batches}) must divide learner.groups ({self.learner.groups})"
            )
        if mistake := _ranks_mistake(self.learner):
            raise ValueError(mistake)
        if self.sampling.turn_tokens >= self.model.max_tokens:
            raise ValueError(
                f"sampling.turn_tokens ({self.sampling.turn_tokens}) must be below model.max_tokens ({self.model.max_tokens})"
            )
        if self.model.dtype == "bfloat16" and self.learner.zero_stage == 0:
            raise ValueError(
                "model.dtype bfloat16 needs learner.zero_stage 1, 2 or 3: below, DeepSpeed sums gradients in bfloat16"
            )
        last = self.server.port + self.server.count - 1
        if not self.server.urls and last > 65535:
            raise ValueError(f"server.port + server.count go up to port {last}; the last port there is is 65535")
        if not self.server.urls and self.server.port <= self.gateway.port <= last:
            raise ValueError(
                f"gateway.port ({self.gateway.port}) is one of the servers' ports ({self.server.port} to {last}); change one of them"
            )
        if self.metrics.port in (self.gateway.port, *([] if self.server.urls else range(self.server.port, last + 1))):
            raise ValueError(
                f"metrics.port ({self.metrics.port}) is the gateway's or a server's port; change one of them"
            )
        if self.weights.backend == "nccl" and not self.learner.devices:
            raise ValueError("weights.backend nccl needs GPUs: set learner.devices, or use gloo")
        if self.algorithm.overlong.buffer_tokens >= self.model.max_tokens:
            raise ValueError(
                f"algorithm.overlong.buffer_tokens ({self.algorithm.overlong.buffer_tokens}) must be below "
                f"model.max_tokens ({self.model.max_tokens}): it is the last part of it"
            )
        if self.algorithm.dynamic_sampling.rounds and self.staleness == 0:
            raise ValueError(
                "algorithm.dynamic_sampling needs staleness of at least 1: lock-step issues one batch a version and no more"
            )
        if self.agent and self.agent.timeout_s >= self.gateway.lease_timeout_s:
            raise ValueError(
                f"agent.timeout_s ({self.agent.timeout_s:g}) must be below gateway.lease_timeout_s "
                f"({self.gateway.lease_timeout_s:g}): no lease is held for longer"
            )
        if self.agent and self.eval.endpoint:
            raise ValueError(
                "eval.endpoint is asked by an environment of ours, and agent plays without one: leave out one of them"
            )
        if mistake := critic_mistake(self.critic, self.algorithm.advantage, self.algorithm.correction, self.run.steps):
            raise ValueError(mistake)
        if isinstance(self.algorithm.advantage, CriticAdvantage) and self.critic is None:
            self.critic = CriticConfig()
        return self


def _ranks_mistake(learner: LearnerConfig) -> str | None:
    if learner.hostfile is None:
        for name in ("node", "master_address"):
            if (value := getattr(learner, name)) is not None:
                return f"learner.{name}={value} is for a learner on several hosts: set learner.hostfile as well"
        if learner.devices and learner.ranks > 1 and learner.ranks != len(learner.devices):
            return f"learner.ranks ({learner.ranks}) must be the number of learner.devices ({len(learner.devices)})"
    return None
