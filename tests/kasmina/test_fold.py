"""Grown networks made plain: the same function, without slots, hooks or Esper."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Family, GraftedModel, blueprints_of, emit_source, find_blueprint, fold, graft
from esper.kasmina.export.insert import SEED_NAME
from esper.leyline import InputError, Stage


def networks() -> dict[Family, tuple[nn.Sequential, str, Tensor]]:
    """A network of each family, the site in it, and an input."""
    conv1d = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Tanh(), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 2, 1))
    conv2d = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1))
    return {
        Family.FEATURES: (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), "1", torch.randn(4, 5, 6)),
        Family.CONV1D: (conv1d, "2", torch.randn(4, 3, 9)),
        Family.CONV2D: (conv2d, "2", torch.randn(4, 3, 9, 9)),
    }


def grown(model: nn.Module, fossils: dict[str, str], example: Any, **settings: Any) -> GraftedModel:
    """`model` with these seeds in place, moved away from their start so that they matter."""
    grafted = graft(model, at=list(fossils), example=example, **settings)
    grafted.plant_fossils(fossils)
    with torch.no_grad():
        for parameter in grafted.slots.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return grafted


KINDS = [(family, kind.name) for family in Family for kind in blueprints_of(family)]


@pytest.mark.parametrize(("family", "blueprint"), KINDS)
def test_every_blueprint_of_every_family_is_exported_exactly(family: Family, blueprint: str) -> None:
    model, path, x = networks()[family]
    bare = model(x)
    grafted = grown(model, {path: blueprint}, x)
    plain = fold(grafted, x).network
    assert (grafted(x) - bare).abs().max() > 1e-3
    torch.testing.assert_close(plain(x), grafted(x), rtol=0, atol=1e-5)
    assert not any(module._forward_hooks for module in plain.modules())
    if find_blueprint(family, blueprint).reads is None:  # layers that a bypass leads around move into one module
        assert {name for name, _ in model.named_parameters()} <= {name for name, _ in plain.named_parameters()}


class Tied(nn.Module):
    """An embedding whose weights are also those of the output layer, and a linear layer that is read, not called."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.read = nn.Linear(6, 6)
        self.out = nn.Linear(6, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.read(self.embed(tokens)) + self.read.weight.sum()
        result: Tensor = self.out(h)
        return result


def test_tied_weights_stay_tied() -> None:
    model, x = Tied(), torch.randint(7, (4, 5))
    grafted = grown(model, {"embed": "low_rank", "read": "mlp"}, x)
    plain: Any = fold(grafted, x).network
    torch.testing.assert_close(plain(x), grafted(x), rtol=0, atol=1e-5)
    assert plain.out.weight is plain.embed.weight
    assert isinstance(plain.read, nn.Linear)


def test_a_seed_kept_before_it_was_blended_in_counts_as_much_as_then() -> None:
    model, path, x = networks()[Family.FEATURES]
    original = copy.deepcopy(model)
    grafted = grown(model, {path: "mlp"}, x)
    table = grafted.table.clone()
    table.alpha[0, 0] = 0.25
    grafted.follow(table)
    folded = fold(grafted, x)
    torch.testing.assert_close(folded.network(x), grafted(x), rtol=0, atol=1e-5)
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit_source(folded, "weights.pt"), "emitted", "exec", dont_inherit=True), names)
    rebuilt = names["grow"](original)
    rebuilt.load_state_dict(folded.network.state_dict())
    torch.testing.assert_close(rebuilt(x), folded.network(x), rtol=0, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_a_seed_that_was_not_kept_is_left_out(alpha: float) -> None:
    model, path, x = networks()[Family.FEATURES]
    bare = model(x)
    grafted = grown(model, {path: "mlp"}, x)
    table = grafted.table.clone()
    table.stage[0, 0], table.alpha[0, 0] = Stage.HOLDING.value, alpha
    grafted.follow(table)
    folded = fold(grafted, x)
    assert folded.inserted == {}
    assert torch.equal(folded.network(x), bare)


def test_several_seeds_of_mixed_kinds_are_folded_together() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    grafted = grown(model, {"0": "mlp", "1": "gated", "2": "low_rank"}, x)
    folded = fold(grafted, x)
    assert set(folded.inserted) == {"0", "1", "2"}
    torch.testing.assert_close(folded.network(x), grafted(x), rtol=0, atol=1e-5)
    assert f"2.{SEED_NAME}.seed.up.weight" in folded.network.state_dict()
    copy.deepcopy(folded.network)(x).sum().backward()


def test_an_export_can_be_grown_again_behind_the_same_submodules() -> None:
    network: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    x = torch.randn(4, 6)
    for blueprint in ("mlp", "gated", "norm"):
        grafted = grown(network, {"1": blueprint, "2": blueprint}, x)
        network = fold(grafted, x).network
        torch.testing.assert_close(network(x), grafted(x), rtol=0, atol=1e-5)
    names = {name.rpartition(SEED_NAME)[2].split(".")[0] for name in network.state_dict() if SEED_NAME in name}
    assert names == {"", "_2", "_3"}
    torch.testing.assert_close(pickle.loads(pickle.dumps(network))(x), network(x), rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_exports_can_be_copied_and_pickled_whole(copied: Any) -> None:
    model, x = Tied(), torch.randint(7, (4, 5))
    network = fold(grown(model, {"embed": "mlp", "read": "norm"}, x), x).network
    again = copied(network.eval())
    torch.testing.assert_close(again(x), network(x), rtol=0, atol=0)
    assert [type(module) for module in again.modules()] == [type(module) for module in network.modules()]
    assert again.out.weight is again.embed.weight is not network.get_parameter("embed.weight")
    assert not again.training


def test_a_shared_submodule_keeps_its_one_seed() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    x = torch.randn(4, 6)
    grafted = grown(model, {"0": "mlp"}, x)
    torch.testing.assert_close(fold(grafted, x).network(x), grafted(x), rtol=0, atol=1e-5)


class Listing(nn.Module):
    """Runs all its children, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_a_model_that_would_change_is_refused() -> None:
    model, x = nn.Sequential(Listing(), nn.Linear(6, 3)), torch.randn(4, 6)
    with pytest.raises(InputError, match="cannot be made plain: its output would change by"):
        fold(grown(model, {"0": "mlp"}, x), x)


class Fading(nn.Module):
    """Gives NaN, -inf or its input, as an attribute says that a copy may not share."""

    def __init__(self, spoiled_copy: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.spoiled_copy, self.original = spoiled_copy, True

    def __deepcopy__(self, memo: dict[int, Any]) -> "Fading":
        twin = Fading(self.spoiled_copy)
        twin.load_state_dict(self.state_dict())
        twin.original = False
        return twin

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layer(x)
        h = torch.cat([h, torch.full_like(h[:, :1], -torch.inf)], 1)  # as a masked logit
        return h * torch.nan if self.spoiled_copy and not self.original else h


@pytest.mark.parametrize("spoiled", [True, False])
def test_an_export_that_gives_nan_is_refused(spoiled: bool) -> None:
    model, x = nn.Sequential(nn.Linear(6, 6), Fading(spoiled)), torch.randn(4, 6)
    grafted = grown(model, {"0": "mlp"}, x)
    if not spoiled:
        fold(grafted, x)
        return
    with pytest.raises(InputError, match="cannot be made plain: its output would change by inf"):
        fold(grafted, x)


class Numbering(nn.Module):
    """Runs a sequence in two pieces, and so counts its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers[3:](self.layers[:3](x).tanh())
        return result


@pytest.mark.parametrize(
    ("make", "prefix", "nested"),
    [(lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))), "", True), (Numbering, "layers.", False)],
)
@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_a_bypass_is_nested_where_nobody_counts_the_layers(make: Any, prefix: str, nested: bool, alpha: float) -> None:
    x = torch.randn(4, 6)
    grafted = grown(make(), {f"{prefix}2": "far_wide"}, x, sources={f"{prefix}2": {"far": f"{prefix}0"}})
    table = grafted.table.clone()
    table.alpha[0, 0] = alpha
    grafted.follow(table)
    folded = fold(grafted, x)
    assert folded.nested is nested
    torch.testing.assert_close(folded.network(x), grafted(x), rtol=0, atol=1e-5)


def test_folding_leaves_the_growing_network_alone() -> None:
    model, path, x = networks()[Family.FEATURES]
    grafted = grown(model, {path: "mlp"}, x)
    before, state = grafted(x), torch.get_rng_state()
    fold(grafted, x).network(x)
    assert torch.equal(grafted(x), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert grafted.training
