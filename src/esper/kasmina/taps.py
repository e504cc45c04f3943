"""Taps: how a tensor gets from where a forward pass makes it to the slots further on that read it."""

from typing import Any

from torch import Tensor, nn

from esper.kasmina.joining import Argument
from esper.kasmina.sites import Source
from esper.leyline import InputError


class Tap:
    """Keeps one tensor of a pass for as long as the pass lasts, if somebody reads it.

    Its hooks are there from the start, because compiled models do not notice hooks that come later.
    """

    def __init__(self, source: Source, module: nn.Module) -> None:
        self.source = source
        self._argument = Argument.of(module, source.argument)
        self.readers = 0
        """Seeds that read it."""
        self.open = False
        self._tensor: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "open": False, "_tensor": None}

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        if self.open:
            self._keep(self._argument.among(args, kwargs))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """The hook behind a submodule whose output is read, seeds that sit there included."""
        if self.open:
            self._keep(output)

    def _keep(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.is_nested:
            raise InputError(f"{self.source}, which a seed reads, is no plain tensor in this pass")
        self._tensor = tensor.clone() if self.source.changed else tensor

    def begin(self) -> None:
        self.open, self._tensor = self.readers > 0, None

    def end(self) -> None:
        self.open, self._tensor = False, None

    def read(self, h: Tensor) -> Tensor | None:
        """The tensor, as the neighbours of `h` are; None if this pass has left it out, as layer dropout does."""
        if not self.open:
            raise InputError(
                f"a seed reads {self.source}, which has not run in this pass: run the whole model, and without "
                "activation checkpointing of the submodules that the seed connects"
            )
        return None if self._tensor is None else self._tensor.to(h)


class Pass:
    """The forward pass of a host: taps are open from its beginning to its end, however it ends."""

    def __init__(self) -> None:
        self.taps: list[Tap] = []

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        for tap in self.taps:
            tap.begin()

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """The hook behind the host, also called when its pass raised."""
        for tap in self.taps:
            tap.end()


def lay_taps(host: nn.Module, sources: set[Source]) -> Pass:
    """Put the hooks of a tap for each source on `host`; slots that sit at the same place must be there already."""
    whole = Pass()
    if not sources:
        return whole
    host.register_forward_pre_hook(whole.begin, prepend=True)
    host.register_forward_hook(whole.end, always_call=True)
    for source in sorted(sources, key=str):
        module = host.get_submodule(source.path)
        tap = Tap(source, module)
        if source.port == "input":
            module.register_forward_pre_hook(tap.before, with_kwargs=True)
        else:
            module.register_forward_hook(tap.after)
        whole.taps.append(tap)
    return whole


def remove_hooks(module: nn.Module, kinds: tuple[type, ...]) -> None:
    """Take the hooks around the forward pass off `module` that are bound to an object of these kinds."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), kinds):
                del hooks[key]
                for flags in (
                    module._forward_hooks_always_called,
                    module._forward_hooks_with_kwargs,
                    module._forward_pre_hooks_with_kwargs,
                ):
                    flags.pop(key, None)
