"""What comes with this package, registered: agents, methods and samplers of virtual actions."""

from __future__ import annotations

from playvirtual.config import baselines, modern, registry
from playvirtual.config.hyperparameters import CATCH, CHEETAH, METHODS, MINATAR, RAINBOW, REACH, SAC
from playvirtual.config.schema import RainbowConfig, SacConfig

# Where the released code disagrees with the text: its Rainbow was trained on Atari, its SAC on DMControl.
# docs/deviations.md has a line for each.
registry.register_agent(
    "rainbow",
    "playvirtual.agents.rainbow:Rainbow",
    config=RainbowConfig,
    actions="discrete",
    hyperparameters={"": RAINBOW, "minatar": MINATAR.agent, "toy": CATCH.agent},
    reference_changes={"noisy_sigma": 0.1, "target_moment": "before-step", "latent_distance": "mse"},
    method=False,
)
registry.register_agent(
    "sac",
    "playvirtual.agents.sac:Sac",
    config=SacConfig,
    actions="continuous",
    hyperparameters={"": SAC, "dmc/cheetah-run": CHEETAH.agent, "toy": REACH.agent},
    reference_changes={
        "projection_hidden": 100,
        "encoder_tanh": False,
        "separate_encoder_optimizer": True,
        "target_projection": "independent",
        "momentum_period": 2,
        "latent_distance": "normalised-mse",
    },
    method=False,
)

for _name, (_changes, _note) in METHODS.items():
    registry.register_method(_name, agents={"discrete": "rainbow", "continuous": "sac"}, changes=_changes, note=_note)

# The baselines of the paper's tables, and what came after the paper.
for _module in (baselines, modern):
    for _name, (_class, _actions, _hyperparameters) in _module.AGENTS.items():
        registry.register_agent(
            _name,
            f"playvirtual.agents.{_class}",
            config=type(_hyperparameters[""]),
            actions=_actions,
            hyperparameters=_hyperparameters,
            run_options=_module.RUN_OPTIONS.get(_name),
            method=False,
        )
    for _name, (_agents, _changes, _note) in _module.METHODS.items():
        registry.register_method(_name, agents=_agents, changes=_changes, note=_note)

registry.register_sampler("uniform", "playvirtual.method.samplers:Uniform")
registry.register_sampler("perturbed", "playvirtual.method.samplers:Perturbed")
registry.protect_built_in()
