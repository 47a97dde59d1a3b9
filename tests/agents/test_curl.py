"""CURL: InfoNCE and the similarity by hand, views, what each loss trains, and the momentum networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import playvirtual as pv
from playvirtual.agents.curl import CurlRainbow, CurlSac
from playvirtual.agents.losses import info_nce
from playvirtual.agents.networks.contrastive import Bilinear, ContrastiveHead
from playvirtual.errors import InputError
from playvirtual.replay.augmentation import CropAndShift, CropAndShiftRandoms
from tests.agents.baseline_agents import IMAGE, rainbow_agent, rainbow_batch, sac_agent, sac_batch, schedule_at


def test_info_nce_by_hand() -> None:
    """Two queries: the first is 1 more similar to its own key than to the other, the second 2 less."""
    similarities = torch.tensor([[3.0, 2.0], [5.0, 3.0]])
    expected = [math.log(1 + math.exp(-1)), math.log(1 + math.exp(2))]
    assert info_nce(similarities).tolist() == pytest.approx(expected)


def test_info_nce_of_keys_that_look_alike_is_the_logarithm_of_their_number() -> None:
    assert info_nce(torch.full((6, 6), 0.7)).tolist() == pytest.approx([math.log(6)] * 6)


def test_the_similarity_by_hand() -> None:
    similarity = Bilinear(2)
    similarity.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    queries, keys = torch.tensor([[1.0, 0.0], [1.0, -1.0]]), torch.tensor([[5.0, 1.0], [0.0, 2.0]])
    # (1, 0) W = (1, 2) and (1, −1) W = (−2, −2).
    assert similarity(queries, keys).tolist() == [[7.0, 4.0], [-12.0, -4.0]]


def test_similarities_start_uniform_and_the_head_ends_in_a_layer_norm() -> None:
    weight = Bilinear(40).weight.detach()
    assert 0 <= float(weight.min()) < 0.05 < 0.95 < float(weight.max()) <= 1
    head = ContrastiveHead(6, 5, 4)
    out = head(torch.randn(3, 2, 3))
    assert out.mean(1).tolist() == pytest.approx([0] * 3, abs=1e-6)
    assert out.square().mean(1).tolist() == pytest.approx([1] * 3, abs=1e-2)
    assert sum(p.numel() for p in head.parameters()) == 6 * 5 + 5 + 5 * 4 + 4  # LayerNorms have none


def test_autocast_does_not_make_states_look_alike() -> None:
    """States that differ by hundredths differ as much with autocast: its own products would lose most of that."""
    torch.manual_seed(0)
    head, states = ContrastiveHead(576, 256, 128), torch.rand(576) + 0.02 * torch.randn(8, 576)
    states = states.bfloat16()  # as an encoder under autocast gives them
    with torch.no_grad():
        exact = head(states.float())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(head(states), exact)
            rounded = head.layers(states)
    spread = (exact - exact.mean(0)).norm()
    assert float((rounded - exact).norm() / spread) > 0.05


def test_a_view_is_a_smaller_crop_padded_and_cropped_again() -> None:
    """Beside PyTorch's own padding, for every pair of offsets of a 6 × 6 image and a pad of 2."""
    image = torch.arange(72, dtype=torch.uint8).view(1, 2, 6, 6)
    augment = CropAndShift(2)
    for top, left, down, right in ((0, 0, 0, 0), (2, 1, 0, 2), (1, 2, 1, 0), (2, 2, 2, 2)):
        crop = image[..., top : top + 4, left : left + 4].float()
        padded = nn.ReplicationPad2d(2)(crop)
        expected = padded[..., down : down + 6, right : right + 6] / 255
        randoms = CropAndShiftRandoms(torch.tensor([[top, left]]), torch.tensor([[down, right]]))
        torch.testing.assert_close(augment(image, randoms), expected)


def test_views_are_drawn_from_all_offsets() -> None:
    crops, shifts = CropAndShift(2).draw(400, torch.device("cpu"), torch.Generator().manual_seed(0))
    for offsets in (crops, shifts):
        assert offsets.shape == (400, 2)
        assert {*offsets.flatten().tolist()} == {0, 1, 2}
    assert not torch.equal(crops, shifts)


def curl_rainbow(**options: object) -> CurlRainbow:
    agent: CurlRainbow = rainbow_agent(
        "curl", CurlRainbow, contrast_size=4, contrast_pad=2, contrast_weight=0.5, contrast_scale=0.2, **options
    )
    return agent


def test_rainbows_contrastive_loss_by_hand() -> None:
    """Queries by the online networks, keys by the momentum ones, one mean for the whole batch."""
    agent = curl_rainbow()
    batch = rainbow_batch(agent)
    inputs = agent.draw(batch)
    losses = agent.losses(batch, inputs)
    observations = batch.sequences.observations[:, 0]
    views = [agent.contrast_augment(observations, randoms) for randoms in (inputs.query, inputs.key)]
    assert not torch.equal(*views)
    queries = agent.contrast_head(agent.encoder(views[0]))
    keys = agent.momentum["contrast_head"](agent.momentum["encoder"](views[1]))
    logits = 0.2 * torch.einsum("qi,ij,kj->qk", queries, agent.similarity.weight, keys)
    contrast = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)))
    torch.testing.assert_close(losses["contrast"], contrast.expand(len(logits)))
    torch.testing.assert_close(losses["priority"], losses["rl"] + 0.5 * contrast)
    torch.testing.assert_close(agent.total_loss(losses, torch.zeros(())), losses["rl"] + 0.5 * contrast)
    # Rainbow's own loss sees the images as they are.
    assert torch.equal(losses["rl"], agent.losses(batch, agent.draw(batch))["rl"])


def test_what_rainbows_contrastive_loss_trains() -> None:
    agent = curl_rainbow()
    batch = rainbow_batch(agent)
    agent.losses(batch, agent.draw(batch))["contrast"].mean().backward()
    trained = {name for name, part in agent.online.items() if any(p.grad is not None for p in part.parameters())}
    assert trained == {"encoder", "contrast_head", "similarity"}
    assert not any(p.requires_grad for p in agent.momentum.parameters())
    grouped = {id(p) for p in agent.clipped_adam.groups["stem"]}
    assert grouped == {id(p) for p in agent.online.parameters()}  # clipped as one


def test_encoders_are_rescaled_only_beside_a_dynamics_model() -> None:
    observations = torch.randint(256, (2, *IMAGE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    alone, beside = (curl_rainbow(K=K).encode(observations).flatten(1).amax(1).tolist() for K in (0, 2))
    assert beside == pytest.approx([1.0, 1.0])
    assert alone != pytest.approx([1.0, 1.0])


def test_momentum_networks_take_a_share_of_the_online_ones_after_every_update() -> None:
    agent = curl_rainbow(contrast_tau=0.25)
    for number in range(2):
        before = {name: p.clone() for name, p in agent.momentum.named_parameters()}
        agent.update(rainbow_batch(agent, seed=number), schedule_at(agent, number, number))
        for name, p in agent.momentum.named_parameters():
            part, _, rest = name.partition(".")
            online = agent.online[part].get_parameter(rest)
            torch.testing.assert_close(p, 0.75 * before[name] + 0.25 * online)


def test_curl_draws_noise_for_the_target_head_too() -> None:
    agent = curl_rainbow(target_period=5)
    agent.update(rainbow_batch(agent), schedule_at(agent, 0, 0))
    noise = [buffer.clone() for buffer in agent.target_head.buffers()]
    agent.update(rainbow_batch(agent), schedule_at(agent, 1, 1))
    assert not any(torch.equal(a, b) for a, b in zip(noise, agent.target_head.buffers(), strict=True))


def test_sacs_contrastive_loss_by_hand() -> None:
    agent: CurlSac = sac_agent("curl", CurlSac, crop_size=7)
    batch = sac_batch(agent).transitions
    randoms = agent.draw(sac_batch(agent))
    keys = (randoms.offsets + 1) % 3
    loss = agent.contrastive_loss(batch, randoms, keys)

    def crops(offsets: torch.Tensor) -> torch.Tensor:
        pairs = zip(batch.observations, offsets.tolist(), strict=True)
        return torch.stack([image[:, top : top + 7, left : left + 7] / 255 for image, (top, left) in pairs])

    queries, positives = agent.encoder(crops(randoms.offsets)), agent.target_critic.encoder(crops(keys))
    logits = queries @ agent.similarity.weight @ positives.T
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, torch.arange(5), reduction="none"))


def test_a_contrastive_update_of_sac_trains_encoder_and_similarity_alone() -> None:
    agent: CurlSac = sac_agent("curl", CurlSac, crop_size=7)
    batch = sac_batch(agent)
    before = {name: {n: p.clone() for n, p in part.named_parameters()} for name, part in agent.parts.items()}
    randoms = agent.draw(batch)
    agent.update_contrast(batch.transitions, randoms, randoms.offsets)
    changed = {
        name
        for name, part in agent.parts.items()
        if any(not torch.equal(p, before[name][n]) for n, p in part.named_parameters())
    }
    assert changed == {"encoder", "convolutions", "critic", "similarity"}  # the critic owns the encoder
    assert torch.equal(agent.critic.q1[0].weight, before["critic"]["q1.0.weight"])


def test_the_encoder_is_stepped_by_two_adams() -> None:
    """Both take the same first step, of the learning rate for a gradient far above ε, so the encoder moves twice."""
    agent: CurlSac = sac_agent("curl", CurlSac, crop_size=7, contrast_learning_rate=1e-3, adam_eps=1e-12)
    batch = sac_batch(agent)
    weight, similarity = agent.encoder.latent.fc.weight, agent.similarity.weight
    before = weight.detach().clone(), similarity.detach().clone()
    randoms = agent.draw(batch)
    agent.update_contrast(batch.transitions, randoms, (randoms.offsets + 1) % 3)
    assert (weight - before[0]).abs().median().item() == pytest.approx(2e-3, rel=1e-2)
    assert (similarity - before[1]).abs().median().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (
            "minatar/breakout",
            {"contrast_pad": 10},
            "contrast_pad: 10 is not allowed; allowed: less than image_size, 10",
        ),
        ("toy/catch", {"contrast_tau": 2}, "contrast_tau: 2.0 is not allowed; allowed: 0 to 1"),
        ("toy/catch", {"encoder_from": "runs/a"}, "encoder_from: 'runs/a' is not allowed with curl, whose own loss"),
        ("toy/reach", {"encoder_from": "runs/a"}, "encoder_from: 'runs/a' is not allowed with curl, whose own loss"),
        ("toy/reach", {"contrast_pad": 2}, "option: 'contrast_pad' is not one of toy/reach, which has continuous"),
    ],
)
def test_bad_options_are_named(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        pv.build(task, method="curl", **options)
    assert "\n" not in str(raised.value)
