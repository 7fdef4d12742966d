"""Solutions of the exercises in 00_start_here, and wrong answers that their checks must catch."""

import itertools

import torch


def pad_rows(x, multiple):
    missing = -x.shape[0] % multiple
    return torch.nn.functional.pad(x, (0, 0, 0, missing))


def left_behind(module, device_type):
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    return sorted(name for name, tensor in tensors if tensor.device.type != device_type)


def one_block_too_many(x, multiple):
    return torch.nn.functional.pad(x, (0, 0, 0, multiple - x.shape[0] % multiple))


def always_float(x, multiple):
    missing = -x.shape[0] % multiple
    return torch.cat([x.float(), torch.zeros(missing, x.shape[1], device=x.device)])


def on_the_cpu(x, multiple):
    return pad_rows(x, multiple).cpu()


def from_the_state_dict(module, device_type):
    return sorted(name for name, tensor in module.state_dict().items() if tensor.device.type != device_type)


def parameters_only(module, device_type):
    return sorted(name for name, tensor in module.named_parameters() if tensor.device.type != device_type)


def nothing(module, device_type):
    return []


WRONG = {
    "pad_rows": [one_block_too_many, always_float, on_the_cpu],
    "left_behind": [from_the_state_dict, parameters_only, nothing],
}
