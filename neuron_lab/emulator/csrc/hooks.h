// What PyTorch asks of an accelerator beside its operators.
#pragma once

namespace neuron_lab {
void register_hooks();
} // namespace neuron_lab
