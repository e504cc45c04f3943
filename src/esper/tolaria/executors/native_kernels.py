"""The arithmetic of native hosts: a program of few operations, run forward and backward, compiled by numba.

A program is a table of whole numbers, one row per operation (`Field`). Tensors of a pass are rows of `[B]` samples, one
below the other in one piece of memory: a series `[B, C, L]` takes C · L rows, channel by channel, and features `[B, D]`
take D. So samples are innermost, everything vectorises along them, and products of matrices go to BLAS.

| array | shape | holds |
|---|---|---|
| act, grad | `[rows · B]` | values of the pass, and the gradients that arrive at them |
| weights, slopes | `[P]` | parameters of the host and then of its seeds, and their gradients |
| alphas | `[A]` | how much of each seed is added |
| consts | `[...]` | matrices that are not learned |

NaN and infinity stay what they are (`_FAST` allows other orders of sums, not their absence), so that a host that fails
is seen to fail.

All in one file, because numba's cache on disk notices changes in the file of a cached function only.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numba import njit

_FAST = {"reassoc", "contract", "arcp", "nsz"}
compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(
    fastmath=_FAST, error_model="numpy", cache=True, nogil=True
)

_EPS = 1e-5
"""Of normalisations, as in torch."""
_CLIP_EPS = 1e-6
"""What torch adds to a norm before it divides by it."""
_BETA1, _BETA2, _ADAM_EPS = 0.9, 0.999, 1e-8


class Code(IntEnum):
    """The operations."""

    LINEAR = 0
    """Of channels, at every position."""
    CONV = 1
    DEPTHWISE = 2
    POSITIONS = 3
    """Linear along positions, the same for every channel."""
    NORM = 4
    """Over all rows of a sample, then a factor and a shift per channel."""
    RELU = 5
    SILU = 6
    MUL = 7
    SCALE = 8
    """By one parameter per channel."""
    MEAN = 9
    """Over positions."""
    FIT = 10
    """Positions times a constant matrix."""
    ADD = 11
    """`other` times an alpha, to `src`."""
    LOSS = 12
    """Softmax cross-entropy of the logits in `src`; its place among the results is `alpha`."""
    TAKE = 13
    """Does nothing forward; backward `src` gets what has arrived at `dst`."""


class Field(IntEnum):
    """The columns of a program. Places are rows of the pass, or offsets among parameters; -1 where there is none."""

    CODE = 0
    SRC = 1
    DST = 2
    OTHER = 3
    WEIGHT = 4
    BIAS = 5
    CHANNELS = 6
    LENGTH = 7
    OUT_CHANNELS = 8
    OUT_LENGTH = 9
    KERNEL = 10
    STRIDE = 11
    PADDING = 12
    ALPHA = 13
    LEARNS = 14
    """Whether gradients of the parameters are wanted."""
    SENDS = 15
    """Whether gradients go back to `src`, and in bit 1 to `other`."""


# numba takes these as constants.
(
    _CODE, _SRC, _DST, _OTHER, _WEIGHT, _BIAS, _CHANNELS, _LENGTH, _OUT_CHANNELS, _OUT_LENGTH, _K, _STRIDE, _PADDING,
    _ALPHA, _LEARNS, _SENDS,
) = (int(field) for field in Field)  # fmt: skip
(_LINEAR, _CONV, _DEPTHWISE, _POSITIONS, _NORM, _RELU, _SILU, _MUL, _SCALE, _MEAN, _FIT, _ADD, _LOSS, _TAKE) = (
    int(code) for code in Code
)


@compiled
def rows_of(memory, first, count, size):
    """Rows of the pass as a matrix `[count, size]`."""
    return memory[first : first + count * size].reshape(count, size)


@compiled
def _exp(x):
    """e to the x: a series near 0, squared ten times. Vectorises, which the C library's does not; NaN stays NaN."""
    v = min(max(np.float64(x), -87.0), 87.0) / 1024.0
    p = 1.0 + v * (1.0 + v * (1 / 2 + v * (1 / 6 + v * (1 / 24 + v * (1 / 120 + v * (1 / 720 + v / 5040))))))
    for _ in range(10):
        p *= p
    return p


@compiled
def _windows(src, dst, op, size):
    """Windows of a series as rows: `dst [C * K, L' * B]` from `src [C * L, B]`; what lies outside of it is 0."""
    channels, length, positions = op[_CHANNELS], op[_LENGTH], op[_OUT_LENGTH]
    kernel, stride, padding = op[_K], op[_STRIDE], op[_PADDING]
    for c in range(channels):
        for k in range(kernel):
            row = dst[c * kernel + k]
            for q in range(positions):
                p = q * stride + k - padding
                out = row[q * size : (q + 1) * size]
                if 0 <= p < length:
                    given = src[c * length + p]
                    for t in range(size):
                        out[t] = given[t]
                else:
                    for t in range(size):
                        out[t] = 0.0


@compiled
def _add_windows(src, dst, op, size):
    """The gradient of `_windows`: what arrived at each window is added where it was taken from."""
    channels, length, positions = op[_CHANNELS], op[_LENGTH], op[_OUT_LENGTH]
    kernel, stride, padding = op[_K], op[_STRIDE], op[_PADDING]
    for c in range(channels):
        for k in range(kernel):
            row = src[c * kernel + k]
            for q in range(positions):
                p = q * stride + k - padding
                if 0 <= p < length:
                    out, given = dst[c * length + p], row[q * size : (q + 1) * size]
                    for t in range(size):
                        out[t] += given[t]


@compiled
def _add_bias(y, bias):
    for o in range(len(bias)):
        row, b = y[o], bias[o]
        for t in range(len(row)):
            row[t] += b


@compiled
def _row_sums(dy, out):
    for o in range(len(out)):
        row, s = dy[o], dy[0, 0] * 0
        for t in range(len(row)):
            s += row[t]
        out[o] = s


@compiled
def _add_to(target, given):
    for t in range(len(target)):
        target[t] += given[t]


@compiled
def _affine_forward(op, act, weights, size):
    """Linear layers and convolutions: one product of matrices, of the windows if there are any."""
    ci, li, co, lo, k = op[_CHANNELS], op[_LENGTH], op[_OUT_CHANNELS], op[_OUT_LENGTH], op[_K]
    w = weights[op[_WEIGHT] : op[_WEIGHT] + co * ci * k].reshape(co, ci * k)
    y = rows_of(act, op[_DST] * size, co, lo * size)
    if op[_CODE] == _LINEAR:
        x = rows_of(act, op[_SRC] * size, ci, li * size)
    else:
        x = rows_of(act, op[_OTHER] * size, ci * k, lo * size)
        _windows(rows_of(act, op[_SRC] * size, ci * li, size), x, op, size)
    np.dot(w, x, y)
    if op[_BIAS] >= 0:
        _add_bias(y, weights[op[_BIAS] : op[_BIAS] + co])


@compiled
def _affine_backward(op, act, grad, weights, slopes, spare, size):
    ci, li, co, lo, k = op[_CHANNELS], op[_LENGTH], op[_OUT_CHANNELS], op[_OUT_LENGTH], op[_K]
    dy = rows_of(grad, op[_DST] * size, co, lo * size)
    linear = op[_CODE] == _LINEAR
    if op[_LEARNS]:
        x = rows_of(act, (op[_SRC] if linear else op[_OTHER]) * size, ci * k, lo * size)
        np.dot(dy, x.T, slopes[op[_WEIGHT] : op[_WEIGHT] + co * ci * k].reshape(co, ci * k))
        if op[_BIAS] >= 0:
            _row_sums(dy, slopes[op[_BIAS] : op[_BIAS] + co])
    if op[_SENDS] & 1:
        w = weights[op[_WEIGHT] : op[_WEIGHT] + co * ci * k].reshape(co, ci * k)
        dx = rows_of(spare, 0, ci * k, lo * size)
        np.dot(w.T, dy, dx)
        if linear:
            _add_to(grad[op[_SRC] * size : (op[_SRC] + ci * li) * size], dx.reshape(-1))
        else:
            _add_windows(dx, rows_of(grad, op[_SRC] * size, ci * li, size), op, size)


@compiled
def _depthwise(op, act, grad, weights, slopes, size, backward):
    """One filter per channel, without a bias; shifted products, tap by tap."""
    channels, length, positions = op[_CHANNELS], op[_LENGTH], op[_OUT_LENGTH]
    kernel, stride, padding = op[_K], op[_STRIDE], op[_PADDING]
    x, y = (
        rows_of(act, op[_SRC] * size, channels * length, size),
        rows_of(act, op[_DST] * size, channels * positions, size),
    )
    dx = rows_of(grad, op[_SRC] * size, channels * length, size)
    dy = rows_of(grad, op[_DST] * size, channels * positions, size)
    if not backward:
        y[:] = 0
    for c in range(channels):
        for k in range(kernel):
            at = op[_WEIGHT] + c * kernel + k
            w, slope = weights[at], weights[at] * 0
            for q in range(positions):
                p = q * stride + k - padding
                if p < 0 or p >= length:
                    continue
                given, out = x[c * length + p], y[c * positions + q]
                back, arrived = dx[c * length + p], dy[c * positions + q]
                if not backward:
                    for t in range(size):
                        out[t] += w * given[t]
                    continue
                s = w * 0
                for t in range(size):
                    s += arrived[t] * given[t]
                slope += s
                if op[_SENDS] & 1:
                    for t in range(size):
                        back[t] += w * arrived[t]
            if backward and op[_LEARNS]:
                slopes[at] = slope


@compiled
def _positions(op, act, grad, weights, slopes, consts, spare, size, backward):
    """A linear map along the positions of each channel: learned, with a bias, or constant (`FIT`)."""
    channels, length, positions = op[_CHANNELS], op[_LENGTH], op[_OUT_LENGTH]
    learned = op[_CODE] == _POSITIONS
    at = op[_WEIGHT]
    matrix = (weights if learned else consts)[at : at + positions * length].reshape(positions, length)
    if backward and learned and op[_LEARNS]:
        slopes[at : at + positions * length] = 0
        slopes[op[_BIAS] : op[_BIAS] + positions] = 0
    for c in range(channels):
        x = rows_of(act, (op[_SRC] + c * length) * size, length, size)
        y = rows_of(act, (op[_DST] + c * positions) * size, positions, size)
        dy = rows_of(grad, (op[_DST] + c * positions) * size, positions, size)
        if not backward:
            np.dot(matrix, x, y)
            if learned:
                _add_bias(y, weights[op[_BIAS] : op[_BIAS] + positions])
            continue
        if learned and op[_LEARNS]:
            part = rows_of(spare, 0, positions, length)
            np.dot(dy, x.T, part)
            _add_to(slopes[at : at + positions * length], part.reshape(-1))
            sums = spare[:positions]
            _row_sums(dy, sums)
            _add_to(slopes[op[_BIAS] : op[_BIAS] + positions], sums)
        if op[_SENDS] & 1:
            dx = rows_of(spare, 0, length, size)
            np.dot(matrix.T, dy, dx)
            _add_to(grad[(op[_SRC] + c * length) * size : (op[_SRC] + (c + 1) * length) * size], dx.reshape(-1))


@compiled
def _norm_forward(op, act, weights, size):
    """`OTHER` is a place for what the gradient needs: the normal rows, and below them 1 / deviation."""
    channels, length = op[_CHANNELS], op[_LENGTH]
    rows = channels * length
    x, y = rows_of(act, op[_SRC] * size, rows, size), rows_of(act, op[_DST] * size, rows, size)
    normal, inverse = rows_of(act, op[_OTHER] * size, rows, size), rows_of(act, (op[_OTHER] + rows) * size, 1, size)[0]
    mean = rows_of(act, (op[_OTHER] + rows + 1) * size, 1, size)[0]
    mean[:] = 0
    inverse[:] = 0
    for r in range(rows):
        _add_to(mean, x[r])
    for t in range(size):
        mean[t] /= rows
    for r in range(rows):
        given = x[r]
        for t in range(size):
            d = given[t] - mean[t]
            inverse[t] += d * d
    for t in range(size):
        inverse[t] = 1 / np.sqrt(inverse[t] / rows + _EPS)
    for r in range(rows):
        given, plain, out = x[r], normal[r], y[r]
        w, b = weights[op[_WEIGHT] + r // length], weights[op[_BIAS] + r // length]
        for t in range(size):
            plain[t] = (given[t] - mean[t]) * inverse[t]
            out[t] = plain[t] * w + b


@compiled
def _norm_backward(op, act, grad, weights, slopes, spare, size):
    channels, length = op[_CHANNELS], op[_LENGTH]
    rows = channels * length
    dx, dy = rows_of(grad, op[_SRC] * size, rows, size), rows_of(grad, op[_DST] * size, rows, size)
    normal, inverse = rows_of(act, op[_OTHER] * size, rows, size), rows_of(act, (op[_OTHER] + rows) * size, 1, size)[0]
    if op[_LEARNS]:
        for c in range(channels):
            factor, shift = weights[0] * 0, weights[0] * 0
            for r in range(c * length, (c + 1) * length):
                arrived, plain = dy[r], normal[r]
                s, u = weights[0] * 0, weights[0] * 0
                for t in range(size):
                    s += arrived[t] * plain[t]
                    u += arrived[t]
                factor += s
                shift += u
            slopes[op[_WEIGHT] + c], slopes[op[_BIAS] + c] = factor, shift
    if not op[_SENDS] & 1:
        return
    # Of each sample: the mean of what arrives, and of that times the normal value.
    mean, along = spare[:size], spare[size : 2 * size]
    mean[:] = 0
    along[:] = 0
    for r in range(rows):
        arrived, plain, w = dy[r], normal[r], weights[op[_WEIGHT] + r // length]
        for t in range(size):
            mean[t] += w * arrived[t]
            along[t] += w * arrived[t] * plain[t]
    for t in range(size):
        mean[t] /= rows
        along[t] /= rows
    for r in range(rows):
        arrived, plain, back, w = dy[r], normal[r], dx[r], weights[op[_WEIGHT] + r // length]
        for t in range(size):
            back[t] += inverse[t] * (w * arrived[t] - mean[t] - plain[t] * along[t])


@compiled
def _pointwise_forward(op, act, weights, alphas, size):
    """Operations of one element at a time."""
    code, count = op[_CODE], op[_CHANNELS] * op[_LENGTH] * size
    x = act[op[_SRC] * size : op[_SRC] * size + count]
    y = act[op[_DST] * size : op[_DST] * size + count]
    if code == _TAKE:
        return
    if code == _RELU:
        for t in range(count):
            v = x[t]
            y[t] = v if not v <= 0 else v * 0  # NaN stays NaN
    elif code == _SILU:
        for t in range(count):
            y[t] = x[t] / (1 + _exp(-x[t]))
    elif code == _MUL:
        other = act[op[_OTHER] * size : op[_OTHER] * size + count]
        for t in range(count):
            y[t] = x[t] * other[t]
    elif code == _ADD:
        other, alpha = act[op[_OTHER] * size : op[_OTHER] * size + count], alphas[op[_ALPHA]]
        for t in range(count):
            y[t] = x[t] + alpha * other[t]
    else:
        step = op[_LENGTH] * size
        for c in range(op[_CHANNELS]):
            w, given, out = weights[op[_WEIGHT] + c], x[c * step : (c + 1) * step], y[c * step : (c + 1) * step]
            for t in range(step):
                out[t] = w * given[t]


@compiled
def _pointwise_backward(op, act, grad, weights, slopes, alphas, size):
    code, count = op[_CODE], op[_CHANNELS] * op[_LENGTH] * size
    x = act[op[_SRC] * size : op[_SRC] * size + count]
    dx = grad[op[_SRC] * size : op[_SRC] * size + count]
    dy = grad[op[_DST] * size : op[_DST] * size + count]
    sends = op[_SENDS] & 1
    if code in (_RELU, _SILU, _TAKE) and not sends:
        return
    if code == _RELU:
        for t in range(count):
            dx[t] += dy[t] if x[t] > 0 else dy[t] * 0
    elif code == _SILU:
        for t in range(count):
            s = 1 / (1 + _exp(-x[t]))
            dx[t] += dy[t] * s * (1 + x[t] * (1 - s))
    elif code == _MUL:
        other = act[op[_OTHER] * size : op[_OTHER] * size + count]
        d_other = grad[op[_OTHER] * size : op[_OTHER] * size + count]
        if sends:
            for t in range(count):
                dx[t] += dy[t] * other[t]
        if op[_SENDS] & 2:
            for t in range(count):
                d_other[t] += dy[t] * x[t]
    elif code == _TAKE:
        _add_to(dx, dy)
    elif code == _ADD:
        if sends:
            _add_to(dx, dy)
        if op[_SENDS] & 2:
            d_other, alpha = grad[op[_OTHER] * size : op[_OTHER] * size + count], alphas[op[_ALPHA]]
            for t in range(count):
                d_other[t] += alpha * dy[t]
    else:
        step = op[_LENGTH] * size
        for c in range(op[_CHANNELS]):
            w, given, arrived = weights[op[_WEIGHT] + c], x[c * step : (c + 1) * step], dy[c * step : (c + 1) * step]
            if op[_LEARNS]:
                s = w * 0
                for t in range(step):
                    s += arrived[t] * given[t]
                slopes[op[_WEIGHT] + c] = s
            if sends:
                back = dx[c * step : (c + 1) * step]
                for t in range(step):
                    back[t] += w * arrived[t]


@compiled
def _mean(op, act, grad, size, backward):
    """Over the positions of each channel."""
    length = op[_LENGTH]
    for c in range(op[_CHANNELS]):
        y, dy = rows_of(act, (op[_DST] + c) * size, 1, size)[0], rows_of(grad, (op[_DST] + c) * size, 1, size)[0]
        if not backward:
            y[:] = 0
        for p in range(length):
            at = (op[_SRC] + c * length + p) * size
            x, dx = act[at : at + size], grad[at : at + size]
            if backward:
                for t in range(size):
                    dx[t] += dy[t] / length
            else:
                _add_to(y, x)
        if not backward:
            for t in range(size):
                y[t] /= length


@compiled
def _loss(op, act, grad, labels, spare, size, backward):
    """The sum of the losses and the number of right answers; with `backward`, gradients of the mean loss too."""
    classes = op[_CHANNELS]
    logits, slope = rows_of(act, op[_SRC] * size, classes, size), rows_of(grad, op[_SRC] * size, classes, size)
    high, total, best = spare[:size], spare[size : 2 * size], spare[2 * size : 3 * size]
    for t in range(size):
        high[t], total[t], best[t] = logits[0, t], 0, 0
    for c in range(1, classes):
        row = logits[c]
        for t in range(size):
            best[t] = c if row[t] > high[t] else best[t]
            high[t] = row[t] if row[t] > high[t] else high[t]
    for c in range(classes):
        row, out = logits[c], slope[c]
        for t in range(size):
            e = _exp(row[t] - high[t])
            total[t] += e
            if backward:
                out[t] = e
    loss, right = 0.0, 0
    for t in range(size):
        own = np.log(total[t]) - (logits[labels[t], t] - high[t])
        loss += own
        right += best[t] == labels[t] and own < np.inf
    if backward:
        for c in range(classes):
            out = slope[c]
            for t in range(size):
                out[t] /= total[t] * size
        for t in range(size):
            slope[labels[t], t] -= 1 / size
    return loss, right


@compiled
def forward(program, act, grad, weights, alphas, consts, spare, labels, size, losses, rights, train):
    """Run a program; `losses` and `rights` take sums over samples, and gradients of logits are left in `grad`."""
    for i in range(len(program)):
        op = program[i]
        code = op[_CODE]
        if code in (_LINEAR, _CONV):
            _affine_forward(op, act, weights, size)
        elif code == _LOSS:
            place = op[_ALPHA]
            loss, right = _loss(op, act, grad, labels, spare, size, train)
            losses[place] += loss
            rights[place] += right
        elif code == _NORM:
            _norm_forward(op, act, weights, size)
        elif code == _MEAN:
            _mean(op, act, grad, size, False)
        elif code == _DEPTHWISE:
            _depthwise(op, act, grad, weights, weights, size, False)
        elif code in (_POSITIONS, _FIT):
            _positions(op, act, grad, weights, weights, consts, spare, size, False)
        else:
            _pointwise_forward(op, act, weights, alphas, size)


@compiled
def backward(program, act, grad, weights, slopes, alphas, consts, spare, size):
    """Run a program backward, from the gradients that `forward` left."""
    for i in range(len(program) - 1, -1, -1):
        op = program[i]
        code = op[_CODE]
        if code in (_LINEAR, _CONV):
            _affine_backward(op, act, grad, weights, slopes, spare, size)
        elif code == _LOSS:
            continue
        elif code == _NORM:
            _norm_backward(op, act, grad, weights, slopes, spare, size)
        elif code == _MEAN:
            if op[_SENDS] & 1:
                _mean(op, act, grad, size, True)
        elif code == _DEPTHWISE:
            _depthwise(op, act, grad, weights, slopes, size, True)
        elif code in (_POSITIONS, _FIT):
            _positions(op, act, grad, weights, slopes, consts, spare, size, True)
        else:
            _pointwise_backward(op, act, grad, weights, slopes, alphas, size)


@compiled
def load(data, rows, act):
    """Samples `data[rows]` into the first rows of a pass."""
    size, features = len(rows), data.shape[1]
    x = rows_of(act, 0, features, size)
    for t in range(size):
        given = data[rows[t]]
        for f in range(features):
            x[f, t] = given[f]


@compiled
def _clip(slopes, limit):
    """Scale gradients down to the norm `limit`; returns the norm before."""
    square = slopes[0] * 0
    for i in range(len(slopes)):
        square += slopes[i] * slopes[i]
    norm = np.sqrt(square)
    factor = limit / (norm + _CLIP_EPS)
    if not factor >= 1:
        for i in range(len(slopes)):
            slopes[i] *= factor
    return norm


@compiled
def _adamw(weights, slopes, first, second, steps, rate, decay):
    """As torch's: decoupled weight decay, corrected means."""
    corrected, root = rate / (1 - _BETA1**steps), np.sqrt(1 - _BETA2**steps)
    keep, size = weights.dtype.type(1 - rate * decay), weights.dtype.type(corrected)
    root, eps = weights.dtype.type(root), weights.dtype.type(_ADAM_EPS)
    b1, b2 = weights.dtype.type(1 - _BETA1), weights.dtype.type(_BETA2)
    c2 = weights.dtype.type(1 - _BETA2)
    for i in range(len(weights)):
        g = slopes[i]
        m = first[i] + b1 * (g - first[i])
        v = b2 * second[i] + c2 * g * g
        first[i], second[i] = m, v
        weights[i] = weights[i] * keep - size * m / (np.sqrt(v) / root + eps)


@compiled
def _sgd(weights, slopes, first, rate, decay, momentum):
    """As torch's, with momenta that begin at 0."""
    r, d, mu = weights.dtype.type(rate), weights.dtype.type(decay), weights.dtype.type(momentum)
    for i in range(len(weights)):
        first[i] = mu * first[i] + slopes[i] + d * weights[i]
        weights[i] -= r * first[i]


@compiled
def train_epoch(program, data, labels, batches, weights, first, second, steps, units, rates, seed_scale, alphas, consts,
                act, grad, slopes, spare, clip_norm, decay, momentum, adam, results):  # fmt: skip
    """Train one host for an epoch of minibatches `batches [M, B]`.

    `units [U + 1]` are where the parameters of the host, and of each seed, begin; they are clipped apart, and
    `steps [U]` counts their steps. `results [M, 2 + U]` takes loss, accuracy, and the norms of their gradients.
    """
    size = batches.shape[1]
    losses, rights = np.zeros(len(alphas) + 1), np.zeros(len(alphas) + 1, np.int64)
    for m in range(len(batches)):
        rows = batches[m]
        chosen = labels[rows]
        load(data, rows, act)
        grad[:] = 0
        losses[:] = 0
        rights[:] = 0
        forward(program, act, grad, weights, alphas, consts, spare, chosen, size, losses, rights, True)
        backward(program, act, grad, weights, slopes, alphas, consts, spare, size)
        results[m, 0], results[m, 1] = losses[0] / size, rights[0] / size
        for u in range(len(steps)):
            a, b = units[u], units[u + 1]
            results[m, 2 + u] = _clip(slopes[a:b], clip_norm)
            steps[u] += 1
            rate = rates[m] * (seed_scale if u else 1.0)
            if adam:
                _adamw(weights[a:b], slopes[a:b], first[a:b], second[a:b], steps[u], rate, decay)
            else:
                _sgd(weights[a:b], slopes[a:b], first[a:b], rate, decay, momentum)


@compiled
def validate(program, data, labels, chunk, weights, alphas, consts, act, grad, spare, losses, rights):
    """Sums of losses and of right answers over all samples, for the network and for each of its variants."""
    count = len(data)
    for start in range(0, count, chunk):
        rows = np.arange(start, min(start + chunk, count))
        load(data, rows, act)
        chosen = labels[rows]
        forward(program, act, grad, weights, alphas, consts, spare, chosen, len(rows), losses, rights, False)


@compiled
def probe(program, cut, data, labels, rows, weights, alphas, consts, act, grad, slopes, spare):
    """Gradients at the slots of a host, in `grad`, and of the parameters of seeds that are not planted, in `slopes`."""
    size = len(rows)
    losses, rights = np.zeros(len(alphas) + 1), np.zeros(len(alphas) + 1, np.int64)
    load(data, rows, act)
    grad[:] = 0
    chosen = labels[rows]
    for part in (program[:cut], program[cut:]):
        forward(part, act, grad, weights, alphas, consts, spare, chosen, size, losses, rights, True)
        backward(part, act, grad, weights, slopes, alphas, consts, spare, size)
