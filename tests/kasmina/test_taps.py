"""Seeds that connect in a running model: what they read and keep alive, and how their output is fitted to its site."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, build_host, graft, restore_snapshot, take_snapshot
from esper.kasmina.taps import fit_positions
from esper.leyline import InputError


def grown(path: str = "blocks.1", kind: str = "far_wide", **settings: object) -> tuple[GraftedModel, Tensor]:
    """A host with one bypass that does something."""
    torch.manual_seed(0)
    host = build_host("conv1d", channels=(4, 6, 8))
    x = torch.randn(5, 40)
    model = graft(host, at=host.slot_sites, example=x, **settings)  # type: ignore[arg-type]
    model.plant_fossils({path: kind})
    for parameter in model.slots.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, x


def test_a_bypass_adds_what_its_seed_makes_of_the_source() -> None:
    model, x = grown()
    host, seed = model.host, model.slots[model.slot_index("blocks.1")].get_submodule("seed")
    series = x[:, None]
    first = host.get_submodule("blocks.0").forward(series)
    second = host.get_submodule("blocks.1").forward(first) + seed(series)
    rest = host.get_submodule("head").forward(host.get_submodule("blocks.2").forward(second))
    assert torch.equal(model(x), rest)


def test_what_is_read_behind_a_submodule_includes_the_seed_that_sits_there() -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 8))
    x = torch.randn(4, 6)
    model = graft(host, at=["1", "2"], example=x, sources={"2": {"far": "1"}})
    model.plant_fossils({"1": "mlp", "2": "far_wide"})
    for parameter in model.slots.parameters():
        nn.init.normal_(parameter)
    refined = host[1].forward(host[0](x))
    refined = refined + model.slots[0].get_submodule("seed")(refined)
    expected = host[2].forward(refined) + model.slots[1].get_submodule("seed")(refined)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_kept_alive_after_a_pass_even_if_it_raises(fails: bool) -> None:
    model, x = grown()
    kept: list[weakref.ref[Tensor]] = []

    def look(_module: nn.Module, _args: object, output: Tensor) -> None:
        kept.append(weakref.ref(output))
        if fails and len(kept) > 1:
            raise RuntimeError("in the middle")

    for part in ("input", "blocks.0"):
        model.host.get_submodule(part).register_forward_hook(look)
    with torch.no_grad():
        if fails:
            with pytest.raises(RuntimeError, match="in the middle"):
                model(x)
        else:
            model(x)
    gc.collect()
    # An input without a channel axis is viewed with one, so that view is gone too.
    assert [tensor() for tensor in kept] == [None, None]


class Dropping(nn.Module):
    """Leaves out its first block when told to, as layer dropout does at random."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Sigmoid()) for _ in range(3))
        self.drop = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[1:] if self.drop else self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("isolated", [False, True])
def test_a_seed_rests_when_the_pass_leaves_its_source_out(isolated: bool) -> None:
    torch.manual_seed(0)
    host, x = Dropping(), torch.randn(4, 6)
    alone = copy.deepcopy(host)
    model = graft(host, at=["blocks.1", "blocks.2"], example=x, sources={"blocks.2": {"far": "blocks.0"}})
    if isolated:
        model.germinate("blocks.2", "far_wide")
        model.begin_epoch()
    else:
        model.plant_fossils({"blocks.2": "far_wide"})
    for parameter in model.slots.parameters():
        nn.init.normal_(parameter)
    host.drop = alone.drop = True
    assert torch.equal(model(x), alone(x))
    with model.override_alpha("blocks.2", torch.ones(4)):
        assert torch.equal(model(x), alone(x))
    host.drop = False
    model(x).sum().backward()
    assert model.seed_gradient_norms()[0, 1] > 0


class Named(nn.Module):
    """Two arguments, the second of which is the one to read."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, shift: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.mix(x).relu() + shift)
        return y


@pytest.mark.parametrize("by_name", [False, True])
def test_an_argument_is_read_whichever_way_it_is_passed(by_name: bool) -> None:
    torch.manual_seed(0)
    shift, x = torch.randn(4, 6), torch.randn(4, 6)
    model = graft(Named(), at=["head"], example={"shift": shift, "x": x} if by_name else (shift, x))
    model.plant_fossils({"head": "far_wide"})
    for parameter in model.slots.parameters():
        nn.init.normal_(parameter)
    seed, (mix, head) = model.slots[0].get_submodule("seed"), (layer.forward for layer in model.host.children())
    expected = head(mix(x).relu() + shift) + seed(x)
    for output in (model(shift, x), model(shift, x=x), model(x=x, shift=shift)):
        assert torch.equal(output, expected)


def test_a_submodule_that_runs_outside_of_a_pass_says_so() -> None:
    model, x = grown()
    with pytest.raises(InputError, match="has not run in this pass"):
        model.host.get_submodule("blocks.1")(torch.randn(5, 4, 19))
    model(x)


def test_isolation_detaches_the_source_too() -> None:
    torch.manual_seed(0)
    host = build_host("mlp", inputs=6, widths=(8, 8), classes=3)
    alone = copy.deepcopy(host)
    x = torch.randn(16, 6)
    model = graft(host, at=host.slot_sites, example=x, sources={"blocks.1": {"far": "blocks.0.0"}})
    model.germinate("blocks.1", "far_wide")
    model.begin_epoch()
    for network in (model, alone):
        network(x).square().sum().backward()
    assert torch.equal(model(x), alone(x))
    for mine, theirs in zip(model.host.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
    assert model.seed_gradient_norms()[0, model.slot_index("blocks.1")] > 0


def test_a_shadow_pass_teaches_the_seed_alone() -> None:
    torch.manual_seed(0)
    host = build_host("mlp", inputs=6, widths=(8, 8), classes=3)
    x = torch.randn(16, 6)
    model = graft(host, at=host.slot_sites, example=x, isolation="shadow", sources={"blocks.1": {"far": "blocks.0"}})
    model.germinate("blocks.1", "far_wide")
    model.begin_epoch()
    model.shadow("blocks.1", x).square().sum().backward()
    assert all(parameter.grad is None for parameter in model.host.parameters())
    assert model.seed_gradient_norms()[0, model.slot_index("blocks.1")] > 0


def test_copies_and_pickles_read_their_own_pass() -> None:
    model, x = grown()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            next(twin.host.parameters()).add_(1.0)
        assert not torch.equal(twin(x), model(x))


def test_a_compiled_model_is_one_graph_and_follows_what_is_planted() -> None:
    model, x = grown()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
    model.plant_fossils({"blocks.2": "near_wide", "head": "far_narrow"})
    for parameter in model.slots.parameters():
        nn.init.normal_(parameter, std=0.3)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_growing_model_can_be_exported_by_torch() -> None:
    model, x = grown()
    program = torch.export.export(model.eval(), (x,), strict=False)
    torch.testing.assert_close(program.module()(x), model(x))


def test_mixed_precision_reads_what_it_needs() -> None:
    model, x = grown()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(x)
        mixed.float().sum().backward()
    torch.testing.assert_close(mixed.float(), model(x), atol=0.1, rtol=0.1)
    halved = copy.deepcopy(model).to(torch.bfloat16)
    torch.testing.assert_close(halved(x.bfloat16()).float(), model(x), atol=0.2, rtol=0.2)


def test_rollback_brings_a_culled_bypass_back_bit_for_bit() -> None:
    torch.manual_seed(0)
    host = build_host("mlp", inputs=6, widths=(8, 8), classes=3)
    optimizer = torch.optim.AdamW(host.parameters(), lr=1e-2)
    x = torch.randn(16, 6)
    model = graft(host, at=host.slot_sites, example=x, optimizer=optimizer)
    model.plant_fossils({"head": "far_wide"})

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    train()
    snapshot, output = take_snapshot(model), model(x)
    train()
    after = model(x)
    model.follow(type(model.table).empty(1, len(model.sites)))
    assert not torch.equal(model(x), output)
    restore_snapshot(model, snapshot)
    assert torch.equal(model(x), output)
    train()
    assert torch.equal(model(x), after)


def test_grafting_anew_leaves_no_hook_of_the_first_time() -> None:
    host = build_host("conv1d")
    x = torch.randn(3, 40)
    graft(host, at=host.slot_sites, example=x)
    graft(host, at=["blocks.1"], example=x)
    hooks = [hook for module in host.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    # One slot, taps at the input of the model and of the block, and the two ends of the pass.
    assert len(hooks) == 5


def test_state_dicts_carry_bypasses() -> None:
    model, x = grown()
    other = build_host("conv1d", channels=(4, 6, 8))
    fresh = graft(other, at=other.slot_sites, example=x)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))


@pytest.mark.parametrize("shape", [(2, 5), (2, 7, 5), (2, 5, 7), (2, 5, 7, 3)])
def test_a_branch_that_fits_is_left_alone(shape: tuple[int, ...]) -> None:
    delta = torch.randn(shape)
    assert fit_positions(delta, torch.zeros(shape)) is delta


def test_too_many_positions_are_averaged() -> None:
    delta = torch.tensor([[[1.0, 3.0, 5.0, 7.0]]])
    assert fit_positions(delta, torch.zeros(1, 1, 2)).tolist() == [[[2.0, 6.0]]]
    assert torch.equal(
        fit_positions(torch.arange(9.0).view(1, 1, 3, 3), torch.zeros(1, 1, 1, 1)), torch.full((1, 1, 1, 1), 4.0)
    )


def test_too_few_positions_are_repeated() -> None:
    delta = torch.tensor([[[1.0, 2.0]]])
    assert fit_positions(delta, torch.zeros(1, 1, 4)).tolist() == [[[1.0, 1.0, 2.0, 2.0]]]


def test_each_axis_of_a_picture_is_fitted_by_itself() -> None:
    delta = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]).view(1, 1, 4, 2)
    fitted = fit_positions(delta, torch.zeros(1, 1, 2, 4))
    assert fitted[0, 0].tolist() == [[2.0, 2.0, 3.0, 3.0], [6.0, 6.0, 7.0, 7.0]]
