"""The MDP with measured costs: the policy's training without a cost network, at the price of a measurement per step.

The paper's comparison of its estimated MDP with the real one (section 4). Episodes, updates and rates are those of
`training.improve_policy`. What the policy sees of the devices, the order of the tables and the reward are measured, each
with the testbed's noise:

- each table by itself, once;
- for `paper`, every placement after a step;
- for `lookahead`, which sees the cost of the next table on each device, every placement that a step could lead to.

Placing a task takes the same measurements, since there is no network to predict them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.cost_model import Normaliser
from dreamshard.costs import PHASES
from dreamshard.legality import violation
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy import mdp
from dreamshard.policy.mdp import Episodes
from dreamshard.policy.policy_network import COST_COLUMNS, DeviceView, PolicyKind, PolicyNetwork
from dreamshard.policy.reinforce import learn_from
from dreamshard.policy.rollout import Rollout, gumbel
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import TrainingState, drawn, set_learning_rates

_FORWARD, _FORWARD_COMM, _BACKWARD_COMM, _BACKWARD = range(len(PHASES))


@dataclass
class MeasuredCosts:
    """Measures placements of some or all tables of a task, and counts.

    Attributes:
        testbed: whose costs and noise.
        generator: of the noise.
        measurements: placements measured so far.
        seconds: CPU time that simulating them took.
    """

    testbed: SimulatedTestbed
    generator: torch.Generator
    measurements: int = 0
    seconds: float = 0.0
    _first_ms: dict[str, list[float]] = field(default_factory=dict)

    def phases_ms(self, task: PlacementTask, device: Int[Tensor, "B T"]) -> Float[Tensor, "B D 4"]:
        """Measured milliseconds per device and phase; tables on a negative device are not placed."""
        began = time.process_time()
        setting = (task.precision, task.optimizer, task.devices_per_host)
        exact = self.testbed.device_costs(task.tables, device, task.num_devices, *setting).phases_ms().float()
        noise = 1 + self.testbed.noise * torch.randn(exact.shape, generator=self.generator)
        self.measurements += len(device)
        self.seconds += time.process_time() - began
        return exact * noise.clamp(min=0)

    def first_phases_ms(self, task: PlacementTask) -> Float[Tensor, "T 4"]:
        """What each table costs on the first of empty devices; a table is measured when it is first met."""
        names = task.tables.names
        new = torch.tensor([t for t, name in enumerate(names) if name not in self._first_ms], dtype=torch.int64)
        if len(new):
            alone = torch.full((len(new), len(names)), -1).scatter_(1, new[:, None], 0)
            measured_ms = self.phases_ms(task, alone)[:, 0].tolist()
            self._first_ms |= {names[t]: cost_ms for t, cost_ms in zip(new.tolist(), measured_ms, strict=True)}
        return torch.tensor([self._first_ms[name] for name in names])


def train_on_measured_costs(state: TrainingState, tasks: Sequence[PlacementTask], costs: MeasuredCosts) -> None:
    """All rounds of Algorithm 1's policy updates, on measured costs; the state's cost network is not used.

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    config, generator = state.config, state.generator
    for _ in range(config.iterations):
        set_learning_rates(state)
        for _ in range(config.policy_updates):
            task = drawn(tasks, generator)
            episodes = episodes_of(task, state.policy.kind, state.normaliser, costs).repeat(config.episodes)
            sampled = measured_rollout(state.policy, task, episodes, costs, generator)
            learn_from(state.policy, state.policy_optimizer, episodes, sampled, config.entropy_weight)
        state.iteration += 1


@dataclass(frozen=True)
class MeasuringPlacer:
    """The most probable device at each step, from measured costs.

    Attributes:
        policy: trained by `train_on_measured_costs`.
        normaliser: of its features.
        costs: measures while it places.
    """

    policy: PolicyNetwork
    normaliser: Normaliser
    costs: MeasuredCosts
    name: str = "real_mdp"

    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where the policy's placement is not legal."""
        episodes = episodes_of(task, self.policy.kind, self.normaliser, self.costs)
        finished = measured_rollout(self.policy, task, episodes, self.costs, None)
        placement = Placement(finished.device[0], task.num_devices)
        if broken := violation(task, placement):
            raise NoPlacementError(
                f"the policy found no legal placement of {task.name}: {broken}; it does not go back, so give the devices "
                "more memory, or use a placer that searches"
            )
        return placement


def episodes_of(task: PlacementTask, kind: PolicyKind, normaliser: Normaliser, costs: MeasuredCosts) -> Episodes:
    """One episode, in descending measured cost of each table; without latents, since nothing is predicted.

    The order and `single_ms` are of what `CostNetwork.first_ms` and `single_ms` predict for the policy: of `lookahead` all
    phases, and compute, since nothing leaves a single device; of `paper` its three heads, which know one all-to-all.
    """
    phases_ms = costs.first_phases_ms(task)
    if kind == "paper":
        first_ms = single_ms = phases_ms[:, [_FORWARD, _BACKWARD, _BACKWARD_COMM]].sum(dim=1)
    else:
        first_ms, single_ms = phases_ms.sum(dim=1), phases_ms[:, [_FORWARD, _BACKWARD]].sum(dim=1)
    order = torch.argsort(first_ms, descending=True, stable=True)
    features = normaliser(task.tables)[order][None]
    return Episodes(
        order[None],
        features,
        features[..., :0],
        task.table_bytes[order][None],
        single_ms[order][None],
        single_ms.sum()[None] / task.num_devices,
        task.num_devices,
        task.memory_bytes,
    )


@torch.no_grad()
def measured_rollout(
    policy: PolicyNetwork,
    task: PlacementTask,
    episodes: Episodes,
    costs: MeasuredCosts,
    generator: torch.Generator | None,
) -> Rollout:
    """Place every table; `generator` samples, None takes the most probable devices."""
    batch, num_tables = episodes.order.shape
    num_devices, episode = episodes.num_devices, torch.arange(batch)
    encoded, table_codes = policy.encode(episodes.features), policy.table_codes(episodes.features)
    noise = None if generator is None else torch.from_numpy(gumbel((num_tables, batch, num_devices), generator))
    sums = encoded.new_zeros(batch, num_devices, encoded.shape[-1])
    used_bytes = torch.zeros(batch, num_devices, dtype=torch.int64)
    phases_ms = torch.zeros(batch, num_devices, len(PHASES))
    device = torch.full((batch, num_tables), -1)
    actions, seen = [], []
    for t in range(num_tables):
        table, table_bytes = episodes.order[:, t], episodes.table_bytes[:, t]
        fits = mdp.legal_devices(used_bytes.numpy(), table_bytes.numpy(), episodes.capacity_bytes)
        legal = torch.from_numpy(fits)  # [B, D]
        tried_ms, if_placed = None, torch.zeros(batch, num_devices)
        if policy.kind == "lookahead":
            tried_ms = _tried(task, device, table, legal, costs)  # [B, D, D, 4]
            by_device = tried_ms.sum(dim=-1)  # [B, D, D] of each choice, each device
            own_ms = float(mdp.OWN_SHARE) * by_device.diagonal(dim1=1, dim2=2)
            if_placed = (by_device.amax(dim=-1) + own_ms) / episodes.reference_ms[:, None]
        relative = _seen_costs(policy.kind, phases_ms, episodes.reference_ms)  # [B, D, 3]
        memory = used_bytes / max(episodes.capacity_bytes, 1)
        device_codes = policy.device_codes(sums, relative, memory, num_tables / num_devices)
        logits = (device_codes * table_codes[:, t, None]).sum(dim=-1) - policy.cost_weight() * if_placed
        if noise is not None:
            logits = logits + noise[t]
        action = logits.masked_fill(~legal, -torch.inf).argmax(dim=1)  # [B]
        actions.append(action)
        seen.append((legal, relative, if_placed, memory))
        device[episode, table] = action
        phases_ms = costs.phases_ms(task, device) if tried_ms is None else tried_ms[episode, action]
        sums[episode, action] += encoded[:, t]
        used_bytes[episode, action] += table_bytes
    legal_steps, *view = (torch.stack(steps, dim=1) for steps in zip(*seen, strict=True))
    return Rollout(
        device,
        phases_ms.sum(dim=-1).amax(dim=-1),
        (used_bytes <= episodes.capacity_bytes).all(dim=1),
        torch.stack(actions, dim=1),
        legal_steps,
        DeviceView(*view),
    )


def _tried(
    task: PlacementTask,
    device: Int[Tensor, "B T"],
    table: Int[Tensor, " B"],
    legal: Bool[Tensor, "B D"],
    costs: MeasuredCosts,
) -> Float[Tensor, "B D D 4"]:
    """What the devices cost with the next table on each of them in turn; 0 where it has no room."""
    batch, num_devices = legal.shape
    choices = device[:, None].repeat(1, num_devices, 1)  # [B, D, T]
    choices[torch.arange(batch), :, table] = torch.arange(num_devices).expand(batch, -1)
    measured_ms = torch.zeros(batch, num_devices, num_devices, len(PHASES))
    measured_ms[legal] = costs.phases_ms(task, choices[legal])
    return measured_ms


def _seen_costs(
    kind: PolicyKind, phases_ms: Float[Tensor, "B D 4"], reference_ms: Float[Tensor, " B"]
) -> Float[Tensor, "B D 3"]:
    """What `DeviceView.costs` says: forward compute, backward compute, and one all-to-all or both."""
    comm_ms = phases_ms[..., _BACKWARD_COMM]
    if kind == "lookahead":
        comm_ms = comm_ms + phases_ms[..., _FORWARD_COMM]
    seen = torch.stack([phases_ms[..., _FORWARD], phases_ms[..., _BACKWARD], comm_ms], dim=-1)
    assert seen.shape[-1] == COST_COLUMNS
    return seen if kind == "paper" else seen / reference_ms[:, None, None]
