"""Bypasses in exported networks: the same function as with hooks that read and add, in plain modules."""

import copy
import pickle
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.export.bypass import Bypass, Bypassed, insert_bypasses
from esper.kasmina.export.insert import Scaled, insert_seed
from esper.kasmina.taps import fit_positions
from tests.kasmina.structures import STRUCTURES, WIDTH, Loop, Structure, layers, linear_branch, read, returned


def add_hooks(network: nn.Module, bypasses: list[Bypass], refining: Mapping[str, nn.Module]) -> None:
    """Do to `network` by hooks what the insertion does: the plain twin of it."""
    for path, seed in refining.items():
        network.get_submodule(path).register_forward_hook(lambda _m, _a, h, seed=seed: h + seed(h))
    held: dict[int, Tensor] = {}

    def join(number: int, _m: nn.Module, _a: Any, h: Tensor) -> Tensor:
        return h + fit_positions(bypasses[number].seed(held[number]), h)

    def keep_input(number: int, _m: nn.Module, args: Any, kwargs: Any) -> None:
        argument = bypasses[number].source.argument
        held[number] = (kwargs[argument] if argument in kwargs else args[0]).clone()

    def keep_output(number: int, _m: nn.Module, _a: Any, h: Tensor) -> None:
        held[number] = h.clone()

    for number, bypass in enumerate(bypasses):
        network.get_submodule(bypass.path).register_forward_hook(partial(join, number))
    for number, bypass in enumerate(bypasses):
        module = network.get_submodule(bypass.source.path)
        if bypass.source.port == "input":
            module.register_forward_pre_hook(partial(keep_input, number), with_kwargs=True)
        else:
            module.register_forward_hook(partial(keep_output, number))


def insert(
    structure: Structure, *, nest: bool = True
) -> tuple[nn.Module, nn.Module, list[tuple[nn.Parameter, nn.Parameter]]]:
    """The network with everything inserted, its twin with hooks, and their parameters in pairs."""
    network, bypasses, refining = structure.network(), structure.bypasses(), dict(structure.refining())
    twin, its_bypasses, its_refining = copy.deepcopy((network, bypasses, refining))

    def parts(network: nn.Module, bypasses: list[Bypass], refining: Mapping[str, nn.Module]) -> nn.ModuleList:
        return nn.ModuleList([network, *(bypass.seed for bypass in bypasses), *refining.values()])

    pairs = list(
        zip(
            parts(network, bypasses, refining).parameters(),
            parts(twin, its_bypasses, its_refining).parameters(),
            strict=True,
        )
    )
    add_hooks(twin, its_bypasses, its_refining)
    for path, seed in refining.items():
        insert_seed(network, path, seed)
    insert_bypasses(network, bypasses, nest=nest)
    return network, twin, pairs


@pytest.mark.parametrize("nest", [True, False])
@pytest.mark.parametrize("name", STRUCTURES)
def test_an_inserted_bypass_computes_and_learns_what_hooks_would(name: str, nest: bool) -> None:
    structure = STRUCTURES[name]
    network, twin, pairs = insert(structure, nest=nest)
    args, kwargs = structure.arguments()
    output, expected = network(*args, **kwargs), twin(*args, **kwargs)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert len(pairs) == len(list(network.parameters()))
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert sum(isinstance(module, Bypassed) for module in network.modules()) == (structure.nested if nest else 0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    if not nest:
        assert structure.network().state_dict().keys() <= network.state_dict().keys()


@pytest.mark.parametrize("name", STRUCTURES)
def test_programs_and_compiled_graphs_compute_the_same(name: str) -> None:
    structure = STRUCTURES[name]
    network = insert(structure)[0].eval()
    args, kwargs = structure.arguments()
    expected = network(*args, **kwargs)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*args, **kwargs), expected, rtol=0, atol=0)
    program = torch.export.export(network, args, kwargs, strict=False).module()
    torch.testing.assert_close(program(*args, **kwargs), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # of the exporter's own packages
@pytest.mark.parametrize(
    "name", ["two that overlap", "a loop over a list", "series with strides that do not come out even"]
)
def test_onnx_computes_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    structure = STRUCTURES[name]
    network = insert(structure)[0].eval()
    (x,), _ = structure.arguments()
    program = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    written: Any = torch.onnx.export(program, dynamo=True, verbose=False)
    written.save(tmp_path / "grown.onnx")
    session = runtime.InferenceSession(tmp_path / "grown.onnx")
    (output,) = session.run(None, {session.get_inputs()[0].name: x[:2].numpy()})
    torch.testing.assert_close(torch.from_numpy(output), network(x[:2]).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
@pytest.mark.parametrize("name", STRUCTURES)
def test_copies_stand_on_their_own(name: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    structure = STRUCTURES[name]
    network = insert(structure)[0]
    args, kwargs = structure.arguments()
    expected = network(*args, **kwargs)
    again = copied(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    torch.testing.assert_close(again(*args, **kwargs), expected, rtol=0, atol=0)
    network.load_state_dict(again.state_dict())
    torch.testing.assert_close(network(*args, **kwargs), expected, rtol=0, atol=0)


def bypass(source: str, path: str, **options: Any) -> Bypass:
    return Bypass(read(source, **options), path, linear_branch())


def test_an_argument_is_found_by_place_and_by_name() -> None:
    network, x, shift = Loop(), torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    to_head = partial(linear_branch, outputs=3)
    insert_bypasses(
        network, [Bypass(read("", "shift"), "head", to_head()), Bypass(read("", 0), "blocks.3", linear_branch())]
    )
    expected = network(x, shift)
    assert torch.equal(network(x=x, shift=shift), expected)
    assert torch.equal(network(x, shift=shift), expected)


class Failing(nn.Module):
    """Raises, if it is told to, and notes what it was given."""

    fails = False

    def forward(self, h: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("no more")
        return h * 1


class Passing(nn.Module):
    """What its first layer is given is not kept by anything but a wire."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, WIDTH)
        self.seen: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        self.seen.append(weakref.ref(h))
        result: Tensor = self.last(self.middle(self.first(h)))
        return result


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_alive_after_a_pass_even_if_it_fails(fails: bool) -> None:
    middle = Failing()
    middle.fails = fails
    network = Passing(middle)
    insert_bypasses(network, [bypass("first", "last")])
    with torch.no_grad():
        if fails:
            with pytest.raises(ValueError, match="no more"):
                network(torch.randn(5, WIDTH))
        else:
            network(torch.randn(5, WIDTH))
    assert network.seen[0]() is None
    middle.fails = False
    assert torch.equal(network(x := torch.randn(5, WIDTH)), network(x))


class Dropping(nn.Module):
    """Leaves out its first block when told to, as layer dropout does at random."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[1:] if self.drop else self.blocks:
            x = block(x).relu()
        return x


def test_a_seed_rests_when_the_pass_leaves_its_source_out() -> None:
    torch.manual_seed(0)
    network, x = Dropping(), torch.randn(5, WIDTH)
    alone = copy.deepcopy(network)
    insert_bypasses(network, [Bypass(returned("blocks.0"), "blocks.2", linear_branch())])
    assert not torch.equal(network(x), alone(x))
    network.drop = alone.drop = True
    assert torch.equal(network(x), alone(x))
    with pytest.raises(RuntimeError, match="without the part of the network that it reads from"):
        network.blocks[2](x)


class Meeting(nn.Module):
    """Waits until as many threads are here as there are to be."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2)

    def forward(self, h: Tensor) -> Tensor:
        self.barrier.wait(timeout=30)
        return h


def test_passes_in_several_threads_do_not_meet() -> None:
    network = Passing(nn.Identity())
    insert_bypasses(network, [bypass("first", "last")])
    inputs = [torch.randn(5, WIDTH) for _ in range(2)]
    expected = [network(x) for x in inputs]
    network.middle = Meeting()
    outputs: dict[int, Tensor] = {}

    def run(index: int) -> None:
        outputs[index] = network(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        assert torch.equal(outputs[index], expected[index])


class Broken(nn.Module):
    """A compiler cannot follow it, and runs it as it is."""

    def forward(self, h: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return h.relu()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_pass_that_is_compiled_in_pieces_finds_its_tensors() -> None:
    network = Passing(nn.Identity())
    network.first = nn.Sequential(Broken(), nn.Linear(WIDTH, WIDTH))  # type: ignore[assignment]
    insert_bypasses(network, [bypass("first", "last"), bypass("first.1", "last")])
    x = torch.randn(5, WIDTH)
    expected = network(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(network, backend="eager")(x), expected, rtol=0, atol=0)


def test_a_seed_kept_before_it_was_blended_in_counts_as_much_as_then() -> None:
    x, seed = torch.randn(5, WIDTH), linear_branch()
    for network, path in ((layers(3), "2"), (Passing(nn.Tanh()), "last")):
        bare = network(x)
        first = next(name for name, _ in network.named_children())
        insert_bypasses(network, [Bypass(read(first), path, Scaled(seed, 0.25))])
        given = x if isinstance(network, nn.Sequential) else 2 * x
        torch.testing.assert_close(network(x), bare + 0.25 * seed(given))


def test_sequences_around_and_modes_stay_as_they_were() -> None:
    network = layers().eval()
    insert_bypasses(network, [bypass("2", "4")])
    assert [name for name, _ in network.named_children()] == ["0", "1", "2_to_4", "5"]
    modes = {name: module.training for name, module in network.named_modules() if "branches" not in name}
    assert "2_to_4.layers.3" in modes
    assert not any(modes.values())


def test_an_export_can_be_grown_again_inside_and_around_what_grew() -> None:
    x = torch.randn(5, WIDTH)
    network: nn.Module = layers()
    insert_bypasses(network, [bypass("1", "3")])
    rounds = [
        (
            [("1_to_3.layers.2", "1_to_3.layers.3"), ("1_to_3.layers.1", "1_to_3.layers.2")],
            ["1_to_3.layers.1", "1_to_3"],
        ),
        ([("0", "4"), ("1_to_3.layers.2", "5")], ["0", "1_to_3"]),
        ([("0_to_4", "5")], ["0_to_4.layers.1_to_3.layers.1"]),
    ]
    for pairs, refined in rounds:
        bypasses, refining = [bypass(*pair) for pair in pairs], {path: linear_branch() for path in refined}
        twin, its_bypasses, its_refining = copy.deepcopy((network, bypasses, refining))
        add_hooks(twin, its_bypasses, its_refining)
        for path, seed in refining.items():
            insert_seed(network, path, seed)
        insert_bypasses(network, bypasses)
        network = pickle.loads(pickle.dumps(network))
        torch.testing.assert_close(network(x), twin(x), rtol=0, atol=1e-5)


def test_a_wired_export_can_be_grown_again() -> None:
    x = torch.randn(5, WIDTH)
    network: nn.Module = Loop()
    for pair in (
        ("blocks.0", "blocks.2"),
        ("blocks.0", "blocks.2"),
        ("blocks.2", "blocks.3"),
        ("blocks.2", "blocks.2"),
    ):
        added, seed = bypass(*pair), linear_branch()
        twin, its, its_seed = copy.deepcopy((network, added, seed))
        add_hooks(twin, [its], {"blocks.1": its_seed})
        insert_seed(network, "blocks.1", seed)
        insert_bypasses(network, [added])
        network = pickle.loads(pickle.dumps(network))
        torch.testing.assert_close(network(x), twin(x), rtol=0, atol=1e-5)
    names = {name.split(".")[2] for name in network.state_dict() if name.startswith("blocks.2.grown_seed")}
    assert names == {"grown_seed", "grown_seed_2", "grown_seed_3"}
