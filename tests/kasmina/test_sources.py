"""What a slot can be connected with: which tensors are offered, which are not, and what can be asked for instead."""

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, build_host, fold, graft
from esper.leyline import InputError


def sources_of(model: GraftedModel, path: str) -> dict[str, str]:
    return {reach: str(source) for reach, source in model.sites[model.slot_index(path)].sources}


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def mlp() -> nn.Sequential:
    return chain(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def test_far_is_the_earliest_tensor_and_near_what_the_slot_before_was_given() -> None:
    grafted = graft(mlp(), at=["1", "3", "5", "6"], example=torch.randn(4, 6))
    assert sources_of(grafted, "1") == {"near": "the input of '1'", "far": "the input of the model"}
    assert sources_of(grafted, "3") == {"near": "the input of '1'", "far": "the input of the model"}
    assert sources_of(grafted, "5") == {"near": "the input of '3'", "far": "the input of the model"}
    assert sources_of(grafted, "6") == {"near": "the input of '5'", "far": "the input of the model"}


def test_where_near_is_the_earliest_tensor_only_far_is_offered() -> None:
    grafted = graft(mlp(), at=["0", "2"], example=torch.randn(4, 6))
    assert sources_of(grafted, "0") == {"far": "the input of the model"}
    assert sources_of(grafted, "2") == {"far": "the input of the model"}


def test_slots_inside_one_another_do_not_count_as_before() -> None:
    host = build_host("conv1d")
    grafted = graft(host, at=host.slot_sites, example=torch.randn(4, 40))
    for path in ("blocks.2.0", "blocks.2"):
        assert sources_of(grafted, path) == {"near": "the input of 'blocks.1'", "far": "the output of 'input'"}


def test_tokens_are_read_after_the_embedding() -> None:
    host = build_host("transformer")
    grafted = graft(host, at=host.slot_sites, example=torch.randint(256, (2, 16)))
    assert sources_of(grafted, "blocks.1") == {"near": "the input of 'blocks.0'", "far": "the output of 'embedding'"}


class Concatenated(nn.Module):
    """Its input and a map of it, of another family each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.wide = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.wide(self.conv(x))
        return h


def test_families_are_not_mixed() -> None:
    grafted = graft(Concatenated(), at=["wide"], example=torch.randn(3, 2, 10))
    # The output of the convolution is read as channels by one layer and as features by the other: nobody can tell.
    assert sources_of(grafted, "wide") == {}


def test_a_source_that_is_written_into_later_is_copied() -> None:
    torch.manual_seed(0)
    model = chain(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Sigmoid())
    grafted = graft(model, at=["1", "2"], example=torch.randn(4, 6))
    near = dict(grafted.sites[1].sources)["near"]
    assert (str(near), near.changed) == ("the input of '1'", True)
    grafted.plant_fossils({"2": "near_wide"})
    seed = grafted.slots[1].get_submodule("seed")
    for parameter in seed.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4, 6)
    before = model[0](x)
    torch.testing.assert_close(grafted(x), (model[2].forward(before.relu()) + seed(before)).sigmoid())
    grafted(x).sum().backward()


def test_what_differs_in_positions_is_not_joined() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.first(x)[:, ::2])
            return y

    grafted = graft(Pooled(), at=["last"], example=torch.randn(3, 8, 6))
    assert sources_of(grafted, "last") == {"far": "the input of 'last'"}


def test_other_sources_can_be_asked_for() -> None:
    asked = {"5": {"near": "3:input", "far": "1"}}
    grafted = graft(mlp(), at=["3", "5"], example=torch.randn(4, 6), sources=asked)
    assert sources_of(grafted, "5") == {"near": "the input of '3'", "far": "the output of '1'"}
    assert sources_of(grafted, "3")["far"] == "the input of the model"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"7": {"far": "1"}}, "unknown slot in sources '7'"),
        ({"5": {"middle": "1"}}, "unknown source of '5' 'middle'"),
        ({"5": {"far": "layers"}}, "unknown submodule in sources 'layers'"),
        ({"5": {"far": "6"}}, "'6' cannot be joined to what '5' returns: it is not there yet"),
        ({"5": "1"}, "must be a mapping"),
    ],
)
def test_a_source_that_cannot_be_is_refused_in_a_sentence_and_nothing_changes(asked: object, problem: str) -> None:
    model = mlp()
    with pytest.raises(InputError, match=problem):
        graft(model, at=["5"], example=torch.randn(4, 6), sources=asked)  # type: ignore[arg-type]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_refusal_lists_what_would_work() -> None:
    host = build_host("transformer")
    with pytest.raises(InputError, match=r"'head' cannot be joined .* What can: .*embedding") as error:
        graft(host, at=["blocks.1"], example=torch.randint(256, (2, 16)), sources={"blocks.1": {"far": "head"}})
    assert "blocks.0:input" in str(error.value)


class Sampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pick, self.table, self.last = Pick(), nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.last(self.table(self.pick(x)))
        return h


class Pick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argsort(-1)


def test_integers_are_no_source() -> None:
    with pytest.raises(InputError, match="not floating-point numbers"):
        graft(Sampled(), at=["last"], example=torch.randn(3, 6), sources={"last": {"far": "pick"}})


def test_an_example_of_one_sample_is_enough() -> None:
    model = chain(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    grafted = graft(model, at=["2"], example=torch.randn(1, 6))
    assert sources_of(grafted, "2")["far"] == "the input of the model"


class Masked(nn.Module):
    """Averages what a mask leaves; both are floating-point inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.head((self.first(x) * mask[..., None]).mean(1))
        return y


def test_a_mask_is_not_taken_for_features() -> None:
    example = [torch.ones(4, 8), torch.randn(4, 8, 6)]
    grafted = graft(Masked(), at=["first", "head"], example=example)
    assert sources_of(grafted, "head") == {"far": "the input of 'head'"}
    assert dict(grafted.sites[0].sources)["far"].argument == 1


class OwnNorm(nn.Module):
    """A normalisation of its own kind, which tells nobody which axis is the width."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x / x.norm(dim=-1, keepdim=True)
        return y


class Normalised(nn.Module):
    """Blocks that begin with a normalisation, as most language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(chain(OwnNorm(), nn.Linear(6, 6)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_slots_tell_the_family_of_what_they_carry() -> None:
    grafted = graft(Normalised(), at=["blocks.0", "blocks.1", "blocks.2"], example=torch.randn(4, 5, 6))
    assert sources_of(grafted, "blocks.2")["near"] == "the input of 'blocks.1'"


class Translator(nn.Module):
    """An encoder, and a decoder that looks at the mean of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.encoder = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.target, self.decoder = nn.Embedding(9, 6), nn.Linear(6, 6)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        targets: Tensor | None = None,
        other_mask: Tensor | None = None,
    ) -> Tensor:
        memory = self.encoder(self.source(tokens))
        memory = memory if mask is None else memory * mask[..., None]
        h = self.target(targets) + memory.mean(1, keepdim=True)
        y: Tensor = self.decoder(h if other_mask is None else h * other_mask[..., None])
        return y


@pytest.mark.parametrize("masks", [False, True])
def test_positions_that_only_happen_to_be_as_many_are_not_joined(masks: bool) -> None:
    tokens = torch.randint(9, (4, 8))
    example = {"tokens": tokens, "targets": tokens}
    if masks:
        example |= {"mask": torch.ones(4, 8), "other_mask": torch.ones(4, 8)}
    grafted = graft(Translator(), at=["encoder", "decoder"], example=example)
    assert sources_of(grafted, "decoder") == {"far": "the output of 'target'"}
    grafted.plant_fossils({"encoder": "far_wide", "decoder": "far_wide"})
    assert grafted(tokens=tokens, targets=tokens[:, :5]).shape == (4, 5, 6)


class Towers(nn.Module):
    """Two inputs of the same shape that are only compared in the end, as when pairs are to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = chain(nn.Linear(6, 6), nn.Sigmoid()), chain(nn.Linear(6, 6), nn.Sigmoid())

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        y: Tensor = self.left(left) @ self.right(right).T
        return y


def test_what_a_model_keeps_apart_is_not_joined_unless_it_is_asked_for() -> None:
    example = [torch.randn(4, 6), torch.randn(4, 6)]
    grafted = graft(Towers(), at=["left", "right"], example=example)
    assert sources_of(grafted, "right") == {"far": "the input of the model"}
    assert dict(grafted.sites[1].sources)["far"].argument == 1
    grafted = graft(Towers(), at=["right"], example=example, sources={"right": {"far": "left"}})
    assert sources_of(grafted, "right")["far"] == "the output of 'left'"


class Placed(nn.Module):
    """Adds a table of positions that does not depend on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.tokens, self.head = nn.Embedding(8, 6), nn.Embedding(9, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1]))
        y: Tensor = self.head((self.tokens(x) + places).mean(1))
        return y


def test_a_table_of_as_many_positions_as_there_are_samples_is_no_source() -> None:
    grafted = graft(Placed(), at=["head"], example=torch.randint(9, (4, 4)))
    assert sources_of(grafted, "head") == {"far": "the input of 'head'"}


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    return chain(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(6, 3))


def test_layers_that_torch_skips_in_evaluation_are_no_source() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6)
    grafted = graft(encoder(), at=["0.layers.0", "0.layers.1", "1"], example=x)
    assert sources_of(grafted, "1") == {"near": "the input of '0.layers.1'", "far": "the input of the model"}
    grafted.plant_fossils({"0.layers.1": "far_wide", "1": "near_wide"})
    for parameter in grafted.slots.parameters():
        nn.init.normal_(parameter)
    # Without hooks, gradients and dropout torch takes its fast way.
    plain = fold(grafted, x).network.eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(x), grafted.eval()(x), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="in one piece"):
        graft(encoder(), at=["1"], example=x, sources={"1": {"far": "0.layers.0.norm1"}})
