"""Checkpoints of Flax and optax in torch, and the other way round: names, axes and optimizer state.

```
conversion = convert.flax_to_torch(names={"Dense_0": "fc1"}, optimizer=convert.AdamW(lr=1e-3, weight_decay=0.01))
view = conversion.view(checkpoint, target.wanted)
```

A conversion is a view of a checkpoint: nothing is read before it is wanted, and then only the boxes that are wanted.
What nothing takes, what nothing gives, and what is ambiguous is an error that lists all of it.

What no rule can see is for the caller to keep equal: the `epsilon` of norms (1e-6 in Flax, 1e-5 in torch), gelu (`tanh` and
`erf`), the momentum of BatchNorm (0.99 in Flax is 0.01 in torch, whose running variance is the unbiased one besides),
padding, the order in which a convolution's output is flattened (`Rule.sizes`); and what an optimizer computes beside its
moments: `eps_root`, masks, rates per parameter, the algorithm (RAdam and AdaBelief of optax keep what Adam keeps).
"""

from ckptcore.convert.conversion import Conversion
from ckptcore.convert.directions import flax_to_torch, torch_to_flax
from ckptcore.convert.hyper import SGD, Adam, AdamW
from ckptcore.convert.rules import FLAX_TORCH, Rule, conv_transpose

__all__ = ["FLAX_TORCH", "SGD", "Adam", "AdamW", "Conversion", "Rule", "conv_transpose", "flax_to_torch", "torch_to_flax"]
