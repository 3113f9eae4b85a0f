"""The settings of training: which model, which estimate, which loss, which optimizer.

Promises: a combination that cannot work is refused when it is read, not after the first batch. So is a setting that was
changed and can change nothing beside the others, such as a bound of a loss that has none.
"""

from typing import Annotated, Literal

from windrow.cluster.mapping import Member
from windrow.core.settings import Count, Natural, Seconds, Share
from windrow.errors import ConfigError
from windrow.types import Meta, Value, but

Estimator = Literal["grpo", "gigpo", "reinforce", "reinforce_pp", "rloo", "gae"]
PolicyLoss = Literal["ppo", "gspo", "cispo", "topr", "pg"]
Aggregation = Literal["token_mean", "sequence_mean", "constant"]
KlKind = Literal["k1", "k2", "k3"]
Spread = Literal["group", "batch", "none"]
Credit = Literal["episode", "turn"]

CLIPS: dict[PolicyLoss, tuple[float, float]] = {"ppo": (0.2, 0.2), "gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
"""How far below and above 1 the ratio may go unless something else is said; the others have no bounds.

PPO (arXiv 1707.06347); GSPO's section 5.1 (2507.18071); CISPO has no lower bound (2506.13585), and its upper one, a
ratio of 5, is ScaleRL's (2510.13786), which TRL recommends as `epsilon_high=5.0` and torchtitan has as 1 + 4.
"""

Positive = Annotated[float, Meta(gt=0.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]


class LoraConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train small adapters instead of all weights."""

    rank: Annotated[Count, Meta(description="of the adapters")] = 8
    alpha: Annotated[Positive, Meta(description="their scale, before it is divided by the rank")] = 16.0
    dropout: Annotated[Share, Meta(description="of what goes into an adapter")] = 0.0
    targets: Annotated[
        tuple[str, ...], Meta(description="names of the layers that get one; none: all linear layers but the head")
    ] = ()


class TinyConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that is made on the spot, with a tokenizer trained on what its environments say."""

    kind: Annotated[Literal["qwen2", "llama", "gpt2"], Meta(description="its architecture")] = "llama"
    hidden: Annotated[Count, Meta(description="width")] = 64
    layers: Annotated[Count, Meta(description="depth")] = 3
    heads: Annotated[Count, Meta(description="of attention")] = 4
    context: Annotated[Count, Meta(description="longest sequence, in tokens")] = 512
    vocabulary: Annotated[
        Annotated[int, Meta(ge=260)], Meta(description="most tokens that the tokenizer may learn; every byte is one")
    ] = 512
    texts: Annotated[
        Count, Meta(description="episodes of each environment, played by its solver, that the tokenizer learns from")
    ] = 200


class ModelConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights that are trained."""

    path: Annotated[str, Meta(description="folder of a Hugging Face model; tiny: one that is made on the spot")] = (
        "tiny"
    )
    tiny: Annotated[TinyConfig, Meta(description="the size of a model that is made on the spot")] = TinyConfig()
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="of the arithmetic; weights and optimizer stay in float32 in any case"),
    ] = "float32"
    device: Annotated[str, Meta(description="where it is trained: cpu, cuda:0")] = "cpu"
    lora: Annotated[LoraConfig | None, Meta(description="train adapters; none: all weights")] = None
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2"], Meta(description="how transformers computes attention")
    ] = "sdpa"
    activation_checkpointing: Annotated[
        bool, Meta(description="compute activations again in the backward pass instead of keeping them")
    ] = False


class OptimizerConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW and the way its learning rate goes."""

    lr: Annotated[NonNegative, Meta(description="highest learning rate; 0 trains nothing, to test the chain")] = 1e-6
    weight_decay: Annotated[NonNegative, Meta(description="decoupled; not of biases and norms")] = 0.0
    betas: Annotated[tuple[Share, Share], Meta(description="of the two averages")] = (0.9, 0.95)
    eps: Annotated[Positive, Meta(description="added to the denominator")] = 1e-8
    clip_norm: Annotated[Positive | None, Meta(description="longest gradient; none: as it is")] = 1.0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"], Meta(description="after the warm-up, down to floor_share of lr")
    ] = "constant"
    warmup_steps: Annotated[Natural, Meta(description="optimizer steps until lr is reached")] = 0
    decay_steps: Annotated[
        Count | None, Meta(description="optimizer steps until the floor is reached; needed by linear and cosine")
    ] = None
    floor_share: Annotated[Share, Meta(description="of lr, where the schedule ends")] = 0.0

    def __post_init__(self) -> None:
        if self.schedule != "constant" and self.decay_steps is None:
            raise ConfigError(f"schedule {self.schedule} needs decay_steps, the optimizer steps until its floor")


class MicroConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many rows go through a model at once."""

    tokens: Annotated[Count, Meta(description="tokens in one forward, padding included; a longer row goes alone")] = (
        16384
    )
    packing: Annotated[
        bool, Meta(description="several rows in one sequence without padding, where attention can keep them apart")
    ] = False
    share_prefixes: Annotated[
        bool, Meta(description="what rows begin with in common is computed once, where attention is sdpa and it pays")
    ] = True


READERS: dict[str, tuple[Estimator, ...]] = {
    "spread": ("grpo", "gigpo"),
    "gae_lambda": ("gae",),
    "anchor_weight": ("gigpo",),
}
"""Settings that some estimators alone look at."""


class EstimatorConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How good each token was."""

    kind: Annotated[
        Estimator,
        Meta(description="grpo, gigpo and rloo compare within groups; gae needs a critic; the others need neither"),
    ] = "grpo"
    spread: Annotated[
        Spread, Meta(description="grpo, gigpo: divide by the deviation of the group, of the batch, or not (Dr. GRPO)")
    ] = "group"
    credit: Annotated[
        Credit, Meta(description="every token gets the episode's score, or what comes from its own turn on")
    ] = "episode"
    discount: Annotated[Share, Meta(description="of what comes a turn later; between tokens of a turn nothing is")] = (
        1.0
    )
    gae_lambda: Annotated[Share, Meta(description="gae: how far ahead rewards are trusted over values")] = 0.95
    anchor_weight: Annotated[
        NonNegative, Meta(description="gigpo: of the comparison at equal states, beside that of episodes")
    ] = 1.0
    whiten: Annotated[
        bool | None,
        Meta(description="mean 0 and deviation 1 over all tokens of a batch; none: reinforce_pp and gae do"),
    ] = None
    clip: Annotated[Positive | None, Meta(description="largest advantage either way; none: any")] = None

    def __post_init__(self) -> None:
        if self.kind == "reinforce_pp" and self.whiten is False:
            raise ConfigError("estimator reinforce_pp without whiten is reinforce; choose that, or leave whiten out")
        by_groups = self.kind in ("grpo", "rloo")
        if by_groups and self.credit == "episode" and self.discount != 1.0:
            raise ConfigError(
                f"discount {self.discount:g} changes nothing with {self.kind} and credit episode, which look at whole "
                f"scores; set credit: turn, or leave discount out"
            )
        if self.kind == "gigpo" and self.credit == "turn":
            raise ConfigError("credit turn changes nothing with gigpo, which looks at step scores anyway; leave it out")
        usual = {"spread": "group", "gae_lambda": 0.95, "anchor_weight": 1.0}
        given = {"spread": self.spread, "gae_lambda": self.gae_lambda, "anchor_weight": self.anchor_weight}
        for name, kinds in READERS.items():
            if given[name] != usual[name] and self.kind not in kinds:
                raise ConfigError(
                    f"{name} {given[name]} changes nothing with {self.kind}; it is for {' and '.join(kinds)}"
                )

    @property
    def compares_groups(self) -> bool:
        """Whether an attempt is worth something only beside others at the same task."""
        return self.kind in ("grpo", "rloo", "gigpo")


class CorrectionConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done about tokens that other numbers or older weights sampled."""

    mismatch_cap: Annotated[
        Positive | None,
        Meta(description="tokens of the current version: weight trainer / engine probability, at most this; none: 1"),
    ] = 2.0
    stale_cap: Annotated[
        Positive | None, Meta(description="the same for tokens of older versions; none: treated like current ones")
    ] = None
    level: Annotated[
        Literal["token", "sequence"], Meta(description="one weight per token, or their geometric mean over a row")
    ] = "token"
    drop_above: Annotated[
        Annotated[float, Meta(gt=1.0)] | None,
        Meta(description="tokens whose weight is further from 1 than this factor are not trained on"),
    ] = None

    @property
    def is_at_work(self) -> bool:
        """Whether somebody asked for more, or for something else, than is usual; none at all is no such wish."""
        usual = CorrectionConfig()
        return self not in (usual, but(usual, mismatch_cap=None))


class LossConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is minimised."""

    kind: Annotated[PolicyLoss, Meta(description="which policy loss")] = "ppo"
    clip_low: Annotated[
        NonNegative | None,
        Meta(description="the ratio may fall so far below 1; none: ppo 0.2, gspo 3e-4, cispo 1 (no bound)"),
    ] = None
    clip_high: Annotated[
        NonNegative | None,
        Meta(description="and rise so far above (clip-higher: more than below); none: ppo 0.2, gspo 4e-4, cispo 4"),
    ] = None
    dual_clip: Annotated[
        Annotated[float, Meta(gt=1.0)] | None, Meta(description="ppo: bound on the ratio where the advantage is bad")
    ] = None
    aggregation: Annotated[
        Aggregation, Meta(description="mean over tokens, over rows of their means, or sum divided by a constant")
    ] = "token_mean"
    constant: Annotated[Positive | None, Meta(description="tokens per row that the sum is divided by")] = None
    kl: Annotated[NonNegative, Meta(description="weight of the distance from the reference, in the loss")] = 0.0
    kl_in_reward: Annotated[NonNegative, Meta(description="the same, taken from the rewards instead")] = 0.0
    kl_kind: Annotated[KlKind, Meta(description="which estimate of it")] = "k3"
    entropy: Annotated[float, Meta(description="weight of the entropy bonus")] = 0.0
    correction: Annotated[CorrectionConfig, Meta(description="between engine and trainer, and for old tokens")] = (
        CorrectionConfig()
    )

    def __post_init__(self) -> None:
        if self.aggregation == "constant" and self.constant is None:
            raise ConfigError("aggregation constant needs loss.constant, the tokens per row that it divides by")
        for name, bound in ("clip_low", self.clip_low), ("clip_high", self.clip_high):
            if bound is not None and self.kind not in CLIPS:
                raise ConfigError(
                    f"{name} {bound:g} changes nothing with {self.kind}, which has no bounds; leave it out"
                )
        if self.dual_clip is not None and self.kind != "ppo":
            raise ConfigError(f"dual_clip {self.dual_clip:g} changes nothing with {self.kind}; it is for ppo")

    @property
    def clips(self) -> tuple[float, float]:
        """How far below and above 1 the ratio may go."""
        low, high = CLIPS.get(self.kind, (0.0, 0.0))
        return low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0 or self.kl_in_reward > 0


class CriticConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model of values."""

    optimizer: Annotated[OptimizerConfig, Meta(description="of its own")] = OptimizerConfig(lr=1e-5)
    clip: Annotated[Positive | None, Meta(description="a value may move so far in one update; none: freely")] = 0.2
    epochs: Annotated[Count, Meta(description="times that a batch is used")] = 1


class TrainConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything between a batch and new weights."""

    estimator: Annotated[EstimatorConfig, Meta(description="advantages")] = EstimatorConfig()
    loss: Annotated[LossConfig, Meta(description="of the policy")] = LossConfig()
    optimizer: Annotated[OptimizerConfig, Meta(description="of the policy")] = OptimizerConfig()
    critic: Annotated[CriticConfig, Meta(description="used by gae alone")] = CriticConfig()
    reference: Annotated[
        str,
        Meta(description="what kl compares with: a Hugging Face folder, a checkpoint or a run; not set: the beginning"),
    ] = ""
    micro: Annotated[MicroConfig, Meta(description="what goes through a model at once")] = MicroConfig()
    epochs: Annotated[Count, Meta(description="times that a batch is used")] = 1
    minibatches: Annotated[Count, Meta(description="optimizer steps per epoch; groups stay whole")] = 1
    old_logprobs: Annotated[
        Literal["engine", "trainer"] | None,
        Meta(
            description="what ratios compare with: the engine's numbers, or the trainer's own before the update; "
            "none: trainer, for topr engine"
        ),
    ] = None
    mismatch_alarm: Annotated[
        Positive,
        Meta(description="mean difference of log-probabilities, trainer and engine, on current tokens, that is wrong"),
    ] = 0.05
    on_mismatch: Annotated[Literal["warn", "stop"], Meta(description="what such an alarm does")] = "warn"
    threads: Annotated[Count, Meta(description="cores that training may use, of each process")] = 1
    processes: Annotated[
        Natural, Meta(description="trainer processes that share the work (FSDP2); 0: a thread of this one")
    ] = 0
    timeout_s: Annotated[Seconds, Meta(description="longest time that trainer processes may take for one call")] = (
        1800.0
    )

    def __post_init__(self) -> None:
        if self.reference and not self.loss.needs_reference:
            raise ConfigError(
                f"train.reference is {self.reference}, which nobody asks; set train.loss.kl or kl_in_reward, or leave "
                f"it out"
            )
        if self.loss.kind == "topr" and self.old_logprobs == "trainer":
            raise ConfigError(
                "old_logprobs trainer goes against loss topr, which weighs what is bad by how likely it still is "
                "compared with whoever sampled it; leave old_logprobs out, or choose loss pg"
            )
        if self.compares_with == "engine" and self.loss.correction.is_at_work:
            why = "loss topr has a weight of its own" if self.loss.kind == "topr" else "old_logprobs is engine"
            raise ConfigError(
                f"loss.correction changes nothing where ratios compare with the engine ({why}); leave it out, or set "
                f"old_logprobs: trainer with another loss than topr"
            )

    @property
    def members(self) -> tuple[Member, ...]:
        """Who has weights: the actor, and whoever its loss and its estimator need."""
        needed: dict[Member, bool] = {
            "actor": True,
            "reference": self.loss.needs_reference,
            "critic": self.estimator.kind == "gae",
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)

    @property
    def compares_with(self) -> Literal["engine", "trainer"]:
        """Whose numbers are the old ones in ratios."""
        return self.old_logprobs or ("engine" if self.loss.kind == "topr" else "trainer")


class DemonstrationConfig(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How supervised steps are taken."""

    steps: Annotated[Count, Meta(description="optimizer steps")] = 200
    batch_size: Annotated[Count, Meta(description="demonstrations per step")] = 64
    threads: Annotated[Count, Meta(description="cores that it may use")] = 1
    optimizer: Annotated[OptimizerConfig, Meta(description="of its own")] = OptimizerConfig(lr=1e-3, warmup_steps=20)
    micro: Annotated[MicroConfig, Meta(description="what goes through a model at once")] = MicroConfig()
