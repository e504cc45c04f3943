"""Layers that serve many copies of a module at once: each copy's samples meet that copy's parameters.

A module that treats samples one by one does not care how many there are. So the samples of R copies go through it as
one batch `[R * B, ...]`, copy after copy, and only the layers that hold parameters have to know where one copy ends:
theirs are stacked, `[R, ...]`. Each class here computes what its parent does, row by row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RowLinear(nn.Linear):
    """One batched product for all rows."""

    def forward(self, x: Tensor) -> Tensor:
        samples, weight = x.reshape(len(self.weight), -1, self.in_features), self.weight.transpose(1, 2)
        bias: Tensor | None = self.bias
        out = samples.bmm(weight) if bias is None else torch.baddbmm(bias[:, None], samples, weight)
        return out.view(*x.shape[:-1], -1)


class RowLayerNorm(nn.LayerNorm):
    """Normalises all rows as one and scales each by its own weights."""

    def forward(self, x: Tensor) -> Tensor:
        normal = F.layer_norm(x, self.normalized_shape, eps=self.eps).view(len(self.weight), -1, x.shape[-1])
        return torch.addcmul(self.bias[:, None], normal, self.weight[:, None]).view_as(x)


class RowGroupNorm(nn.GroupNorm):
    """Normalises all rows as one and scales each by its own weights."""

    def forward(self, x: Tensor) -> Tensor:
        normal = F.group_norm(x, self.num_groups, eps=self.eps).unflatten(0, (len(self.weight), -1))
        shape = (len(self.weight), 1, self.num_channels, *[1] * (x.ndim - 2))
        return torch.addcmul(self.bias.reshape(shape), normal, self.weight.reshape(shape)).view_as(x)


class RowConv1d(nn.Conv1d):
    """A convolution over series as one batched product, or, if depthwise, as a sum of shifted products."""

    def forward(self, x: Tensor) -> Tensor:
        kind = _ConvProduct if self.groups == 1 else _DepthwiseSum
        out: Tensor = kind.apply(x, self.weight, self.stride[0], int(self.padding[0]))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            by_row: Tensor = out.unflatten(0, (len(self.bias), -1))
            out = (by_row + self.bias[:, None, :, None]).flatten(0, 1)
        return out


class RowConv2d(nn.Conv2d):
    """Convolutions over images, one call per row: they are large enough that a call more does not matter.

    As one convolution of R groups, which is what vmap makes of them, they take two to three times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        biases = [None] * len(self.weight) if self.bias is None else self.bias.unbind()
        rows = zip(x.chunk(len(self.weight)), self.weight.unbind(), biases, strict=True)
        return torch.cat([self._conv_forward(row, weight, bias) for row, weight, bias in rows])


ROW_LAYERS = (RowLinear, RowLayerNorm, RowGroupNorm, RowConv1d, RowConv2d)


def row_class(layer: nn.Module) -> type[nn.Module] | None:
    """The class here that does for rows what `layer` does, or None."""
    if type(layer) is nn.Linear:
        return RowLinear
    if type(layer) is nn.LayerNorm:
        plain = len(layer.normalized_shape) == 1 and layer.weight is not None and layer.bias is not None
        return RowLayerNorm if plain else None
    if type(layer) is nn.GroupNorm:
        return RowGroupNorm if layer.affine else None
    if type(layer) is nn.Conv2d:
        return RowConv2d
    return RowConv1d if type(layer) is nn.Conv1d and _is_plain(layer) else None


def _is_plain(conv: nn.Conv1d) -> bool:
    depthwise = conv.groups == conv.in_channels == conv.out_channels
    padded = conv.padding_mode == "zeros" and isinstance(conv.padding, tuple)
    return padded and conv.dilation == (1,) and (conv.groups == 1 or depthwise)


def _taps(length: int, kernel: int, stride: int, padding: int) -> tuple[int, list[tuple[slice, slice]]]:
    """How many positions come out, and for each tap of the kernel which of them read which positions of the input."""
    positions = (length + 2 * padding - kernel) // stride + 1
    taps = []
    for tap in range(kernel):
        first = max(0, -((tap - padding) // stride))
        last = max(first, min(positions, (length - 1 + padding - tap) // stride + 1))
        start = first * stride + tap - padding
        taps.append((slice(first, last), slice(start, start + (last - first) * stride, stride)))
    return positions, taps


class _ConvProduct(torch.autograd.Function):
    """`x [R * B, C, L]`, `weight [R, D, C, K]` to `[R * B, D, M]`, channels last in memory.

    Written by hand because the gradient of windows, which torch sums one by one, is but K shifted additions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        rows, channels_out, channels, kernel = weight.shape
        positions, taps = _taps(x.shape[2], kernel, stride, padding)
        # Windows of the series as rows of a matrix; what lies outside of it stays 0.
        series = x.transpose(1, 2)
        if kernel == 1 and stride == 1 and padding == 0:
            windows = series.reshape(rows, -1, channels)
        else:
            columns = x.new_zeros(len(x), positions, kernel, channels)
            for tap, (out, source) in enumerate(taps):
                columns[:, out, tap] = series[:, source]
            windows = columns.view(rows, -1, kernel * channels)
        # Then a convolution is one product per copy.
        matrix = weight.permute(0, 3, 2, 1).reshape(rows, kernel * channels, channels_out)
        ctx.save_for_backward(windows, matrix)
        ctx.sizes = (x.shape, weight.shape, positions, taps)
        return windows.bmm(matrix).view(len(x), positions, channels_out).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        windows, matrix = ctx.saved_tensors
        (samples, channels, length), (rows, channels_out, _, kernel), positions, taps = ctx.sizes
        flat = gradient.transpose(1, 2).reshape(rows, -1, channels_out)
        for_weight = windows.transpose(1, 2).bmm(flat).view(rows, kernel, channels, channels_out).permute(0, 3, 2, 1)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None
        # Every window sends its gradient back to the positions that it was taken from, tap by tap.
        for_windows = flat.bmm(matrix.transpose(1, 2)).view(samples, positions, kernel, channels)
        if kernel == 1 and positions == length:
            return for_windows.view(samples, length, channels).transpose(1, 2), for_weight, None, None
        for_series = gradient.new_zeros(samples, length, channels)
        for tap, (out, source) in enumerate(taps):
            for_series[:, source] += for_windows[:, out, tap]
        return for_series.transpose(1, 2), for_weight, None, None


class _DepthwiseSum(torch.autograd.Function):
    """`x [R * B, C, L]`, `weight [R, C, 1, K]` to `[R * B, C, M]`, channels last in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        rows, channels, _, kernel = weight.shape
        positions, taps = _taps(x.shape[2], kernel, stride, padding)
        series = x.transpose(1, 2).unflatten(0, (rows, -1))
        by_tap = weight.permute(3, 0, 2, 1)[:, :, None]
        # One shifted product per tap of the kernel.
        result = x.new_zeros(*series.shape[:2], positions, channels)
        for tap, (out, source) in enumerate(taps):
            result[:, :, out].addcmul_(series[:, :, source], by_tap[tap])
        ctx.save_for_backward(series, by_tap)
        ctx.taps = taps
        return result.flatten(0, 1).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        series, by_tap = ctx.saved_tensors
        outer = gradient.transpose(1, 2).unflatten(0, series.shape[:2])
        for_series = torch.zeros_like(series, memory_format=torch.contiguous_format)
        # The same shifted products, once with the weights and once with the series.
        for_weight = []
        for tap, (out, source) in enumerate(ctx.taps):
            for_series[:, :, source].addcmul_(outer[:, :, out], by_tap[tap])
            for_weight.append((outer[:, :, out] * series[:, :, source]).sum((1, 2)))
        return for_series.flatten(0, 1).transpose(1, 2), torch.stack(for_weight, 2)[:, :, None], None, None
