"""SAC+AE (Yarats et al. 2021): SAC whose encoder is also trained by the reconstruction of its observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Agent, Schedule, Update
from playvirtual.agents.losses import latent_penalty, quantize, reconstruction_loss
from playvirtual.agents.networks.sac import Decoder
from playvirtual.agents.sac import Sac, SacRandoms
from playvirtual.config.baselines import SacAeConfig
from playvirtual.config.schema import Config
from playvirtual.replay.augmentation import RandomCrop
from playvirtual.replay.batches import SacBatch, TransitionBatch


class SacAe(Sac):
    """SAC with a deterministic autoencoder; its images are not augmented, since a crop is the whole image.

    Reconstruction has an Adam for the encoder and one with weight decay for the decoder.
    """

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        c = config.agent
        assert isinstance(c, SacAeConfig)
        self.latent_weight = c.latent_weight
        crop_shape = (self.observation_shape[0], c.crop_size, c.crop_size)
        self.decoder = Decoder(crop_shape, c.channels, c.kernel_sizes, c.strides, c.latent).to(self.device)
        self.optimizers["reconstruction"] = self._adam(self.encoder, lr=c.learning_rate)
        self.optimizers["decoder"] = self._adam(
            self.decoder, lr=c.decoder_learning_rate, weight_decay=c.decoder_weight_decay
        )
        self._mean_reconstruction_loss = self.mean_reconstruction_loss

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        return {**super().parts, "decoder": self.decoder}

    def update(self, batch: SacBatch, schedule: Schedule) -> Update:
        """SAC's update, then one of encoder and decoder on the reconstruction."""
        randoms, observations = self.draw(batch), batch.transitions.observations
        shape = (len(observations), observations.shape[1], self.config.crop_size, self.config.crop_size)
        dither = torch.rand(shape, generator=self.generator, device=self.device)
        metrics = self.update_parts(batch, randoms, schedule)
        metrics |= self.update_decoder(batch.transitions, randoms, dither)
        return Update({name: value.detach() for name, value in metrics.items()})

    def reconstruction_losses(self, batch: TransitionBatch, randoms: SacRandoms, dither: Tensor) -> dict[str, Tensor]:
        """{"reconstruction", "latent"}, (B,) each: the decoder's squared error, and the penalty on the latent state."""
        assert isinstance(self.augment, RandomCrop)
        z = self.encoder(self.augment.crop(batch.observations, randoms.offsets))
        target = quantize(self.augment.crop_pixels(batch.observations, randoms.offsets), dither)
        return {"reconstruction": reconstruction_loss(self.decoder(z), target), "latent": latent_penalty(z)}

    def mean_reconstruction_loss(
        self, batch: TransitionBatch, randoms: SacRandoms, dither: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of mean reconstruction loss and latent penalty, and both means; compiled as one function."""
        with self._autocast():
            losses = self.reconstruction_losses(batch, randoms, dither)
        metrics = {f"loss_{name}": loss.detach().mean() for name, loss in losses.items()}
        return losses["reconstruction"].mean() + self.latent_weight * losses["latent"].mean(), metrics

    def update_decoder(self, batch: TransitionBatch, randoms: SacRandoms, dither: Tensor) -> dict[str, Tensor]:
        """One step of encoder and decoder."""
        loss, metrics = self._mean_reconstruction_loss(batch, randoms, dither)
        self._set_gradients(loss, "reconstruction", "decoder")
        self.optimizers["reconstruction"].step()
        self.optimizers["decoder"].step()
        return metrics

    def compile(self) -> None:
        super().compile()
        self._mean_reconstruction_loss = torch.compile(self.mean_reconstruction_loss)

    def _modules(self) -> dict[str, nn.Module]:
        return {**super()._modules(), "decoder": self.decoder}


if TYPE_CHECKING:
    _fulfils_contract: type[Agent] = SacAe
