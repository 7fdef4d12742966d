"""Solutions of the exercises in 01_eager_tensors, and wrong answers that their checks must catch."""

import warnings

import torch


def noise(shape, seed, device):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device)


def relative_error(result, exact):
    return ((result.float() - exact).abs().max() / exact.abs().max()).item()


def three_way(fn, inputs, device):
    exact = fn(*inputs)
    on_cpu = relative_error(fn(*(x.bfloat16() for x in inputs)), exact)
    on_device = relative_error(fn(*(x.bfloat16().to(device) for x in inputs)).cpu(), exact)
    return on_cpu, on_device


def best_match(queries, keys, rows):
    parts = [(chunk @ keys.T).amax(dim=1) for chunk in queries.split(rows)]
    return torch.cat(parts)


def left_on_the_cpu(shape, seed, device):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made_on_the_device(shape, seed, device):
    with warnings.catch_warnings(action="ignore"):  # that it falls back is the point
        return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def made_there_as_well(shape, seed, device):
    with warnings.catch_warnings(action="ignore"):
        torch.empty(shape, device=device).normal_()
    return noise(shape, seed, device)


def one_seed(shape, seed, device):
    return noise(shape, 0, device)


def cpu_only(fn, inputs, device):
    return three_way(fn, inputs, "cpu")


def in_float32(fn, inputs, device):
    exact = fn(*inputs)
    return three_way(fn, inputs, device)[0], relative_error(fn(*(x.to(device) for x in inputs)).cpu(), exact)


def all_at_once(queries, keys, rows):
    return (queries @ keys.T).amax(dim=1)


def without_the_last_chunk(queries, keys, rows):
    whole = len(queries) // rows * rows
    return best_match(queries[:whole], keys, rows)


def smallest(queries, keys, rows):
    return torch.cat([(chunk @ keys.T).amin(dim=1) for chunk in queries.split(rows)])


WRONG = {
    "noise": [left_on_the_cpu, made_on_the_device, made_there_as_well, one_seed],
    "three_way": [cpu_only, in_float32],
    "best_match": [all_at_once, without_the_last_chunk, smallest],
}
