"""CURL (Laskin et al. 2020): Rainbow or SAC with a contrastive loss on two augmented views of each observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Agent, Schedule, Update
from playvirtual.agents.losses import info_nce
from playvirtual.agents.networks.contrastive import Bilinear, ContrastiveHead
from playvirtual.agents.networks.rainbow import DuelingHead
from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac, SacRandoms
from playvirtual.config.baselines import CurlRainbowConfig, CurlSacConfig
from playvirtual.config.schema import Config
from playvirtual.method import RandomInputs
from playvirtual.method.target_network import make_target, soft_update
from playvirtual.replay.augmentation import CropAndShift, CropAndShiftRandoms
from playvirtual.replay.batches import RainbowBatch, SacBatch, TransitionBatch


class CurlRandoms(NamedTuple):
    """All random numbers of one update of CURL on Rainbow but the noisy layers'."""

    rainbow: RandomInputs
    query: CropAndShiftRandoms  # (B,) of the views that the online encoder sees
    key: CropAndShiftRandoms  # (B,) of those that the momentum encoder sees


class CurlRainbow(Rainbow):
    """Rainbow on images as they are, and a contrastive loss on augmented ones; priorities are the summed loss.

    The head of the contrastive loss, its similarity and the encoder are trained by Rainbow's optimizer step; keys come
    from momentum copies of encoder and head.
    """

    always_rescaled = False
    own_target_noise = True  # it is copied rarely

    def _make_networks(self, config: Config) -> None:
        super()._make_networks(config)
        c = config.agent
        assert isinstance(c, CurlRainbowConfig)
        self.contrast_config = c
        self.contrast_head = ContrastiveHead(self.encoder.size, c.hidden, c.contrast_size).to(self.device)
        self.similarity = Bilinear(c.contrast_size).to(self.device)
        self.online.update({"contrast_head": self.contrast_head, "similarity": self.similarity})
        momentum = {"encoder": make_target(self.encoder), "contrast_head": make_target(self.contrast_head)}
        self.momentum = nn.ModuleDict(momentum)

    def _make_head(self) -> DuelingHead:
        c = self.config
        size, actions = self.encoder.size, self.action_space.n
        return DuelingHead(size, actions, c.hidden, c.atoms, c.noisy_sigma, gradient_scale=1.0)

    def _make_objective(self, config: Config) -> None:
        super()._make_objective(config)
        self.contrast_augment = CropAndShift(self.contrast_config.contrast_pad, self.augment.space_to_depth)
        self.loss_names = (*self.loss_names, "contrast")

    def _stem(self) -> tuple[nn.Module, ...]:
        return (*super()._stem(), self.contrast_head, self.similarity)

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        return {**super().parts, **{f"momentum_{name}": module for name, module in self.momentum.items()}}

    def draw(self, batch: RainbowBatch) -> CurlRandoms:
        rainbow = super().draw(batch)
        query, key = (self.contrast_augment.draw(len(batch.returns), self.device, self.generator) for _ in range(2))
        return CurlRandoms(rainbow, query, key)

    def losses(self, batch: RainbowBatch, inputs: CurlRandoms) -> dict[str, Tensor]:
        """Rainbow's losses and "contrast", one number for the whole batch; "priority" is its weighted sum with "rl"."""
        losses = super().losses(batch, inputs.rainbow)
        contrast = self.contrastive_loss(batch.sequences.observations[:, 0], inputs).mean()
        priority = (losses["rl"] + self.contrast_config.contrast_weight * contrast).detach()
        return {**losses, "contrast": contrast.expand(len(priority)), "priority": priority}

    def contrastive_loss(self, observations: Tensor, inputs: CurlRandoms) -> Tensor:
        """InfoNCE of each observation (B, C, H, W) among the batch. Returns (B,)."""
        queries = self.contrast_head(self.encoder(self.contrast_augment(observations, inputs.query)))
        with torch.no_grad():
            views = self.contrast_augment(observations, inputs.key)
            keys = self.momentum["contrast_head"](self.momentum["encoder"](views))
        return info_nce(self.contrast_config.contrast_scale * self.similarity(queries, keys))

    def total_loss(self, losses: dict[str, Tensor], lambda_cyc: Tensor) -> Tensor:
        return super().total_loss(losses, lambda_cyc) + self.contrast_config.contrast_weight * losses["contrast"]

    def update(self, batch: RainbowBatch, schedule: Schedule) -> Update:
        update = super().update(batch, schedule)
        for name, module in self.momentum.items():
            soft_update(module, self.online[name], self.contrast_config.contrast_tau)
        return update

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "momentum": self.momentum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.momentum.load_state_dict(state["momentum"])


class CurlSac(Sac):
    """SAC whose encoder also learns to tell the crops of one observation from those of others.

    Queries are encoded by the critic's encoder, keys by the target critic's. As in the released code two Adams own the
    encoder in a contrastive update, so that it is stepped twice.
    """

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        c = config.agent
        assert isinstance(c, CurlSacConfig)
        self.similarity = Bilinear(c.latent).to(self.device)
        rate = c.contrast_learning_rate
        self.optimizers["contrast"] = self._adam(self.encoder, self.similarity, lr=rate)
        self.optimizers["contrast_encoder"] = self._adam(self.encoder, lr=rate)
        self._mean_contrastive_loss = self.mean_contrastive_loss

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        return {**super().parts, "similarity": self.similarity}

    def update(self, batch: SacBatch, schedule: Schedule) -> Update:
        """SAC's update, then one of encoder and similarity on the contrastive loss."""
        randoms = self.draw(batch)
        keys, _ = self.augment.draw(len(batch.transitions.actions), self.device, self.generator)
        metrics = self.update_parts(batch, randoms, schedule)
        metrics |= self.update_contrast(batch.transitions, randoms, keys)
        return Update({name: value.detach() for name, value in metrics.items()})

    def contrastive_loss(self, batch: TransitionBatch, randoms: SacRandoms, keys: Tensor) -> Tensor:
        """InfoNCE of the crops of the critic's update against those at the offsets `keys` (B, 2). Returns (B,)."""
        queries = self.encoder(self.augment.crop(batch.observations, randoms.offsets))
        with torch.no_grad():
            positives = self.target_critic.encoder(self.augment.crop(batch.observations, keys))
        return info_nce(self.similarity(queries, positives))

    def mean_contrastive_loss(self, batch: TransitionBatch, randoms: SacRandoms, keys: Tensor) -> Tensor:
        """The mean of CURL's InfoNCE loss over the batch; compiled as one function."""
        with self._autocast():
            losses = self.contrastive_loss(batch, randoms, keys)
        return losses.mean()

    def update_contrast(self, batch: TransitionBatch, randoms: SacRandoms, keys: Tensor) -> dict[str, Tensor]:
        """One step of the similarity, two of the encoder."""
        loss = self._mean_contrastive_loss(batch, randoms, keys)
        self._set_gradients(loss, "contrast")
        self.optimizers["contrast_encoder"].step()
        self.optimizers["contrast"].step()
        return {"loss_contrast": loss}

    def compile(self) -> None:
        super().compile()
        self._mean_contrastive_loss = torch.compile(self.mean_contrastive_loss)

    def _modules(self) -> dict[str, nn.Module]:
        return {**super()._modules(), "similarity": self.similarity}


if TYPE_CHECKING:
    _rainbow: type[Agent] = CurlRainbow
    _sac: type[Agent] = CurlSac
