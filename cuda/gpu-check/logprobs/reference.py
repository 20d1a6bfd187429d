"""Models of transformers with the weights of a GGUF file."""

import contextlib

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import layout

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def require_float32(device):
    """Disables TF32 for float32 products, and fails if the environment enables it all the same."""
    torch.set_float32_matmul_precision("highest")
    a, b = torch.rand(2, 512, 512, generator=torch.Generator().manual_seed(1)).to(device)
    error = (((a @ b).double() - a.double() @ b.double()) / (a.double() @ b.double())).abs().max().item()
    if error > 1e-5:
        raise ValueError(f"products of float32 are {error:.1e} off on {device}")


class Reference:
    """A model on a device: weights in float32, and run in float32, float16 or bfloat16."""

    def __init__(self, file, device):
        self.device, self.layout = device, layout.Layout(file.metadata, file.shapes)
        name = CLASSES[self.layout.architecture]
        config = self.config(getattr(transformers, name + "Config"))
        with contextlib.nullcontext() if device == "cpu" else torch.device(device):
            self.model = getattr(transformers, name + "ForCausalLM")(config)
        self.model.float().eval().requires_grad_(False)
        self.fill(file)
        self.check_rotations(file)
        self.weights = {key: p.data for key, p in self.model.named_parameters()}

    def config(self, kind):
        """Releases from 5 on store the base together with the other RoPE parameters."""
        rope, base, shape = self.layout.rope(), self.layout.base, self.layout.config
        if hasattr(kind(), "rope_parameters"):
            return kind(**shape, rope_parameters={**rope, "rope_theta": base})
        return kind(**shape, rope_theta=base, rope_scaling=rope if self.layout.extended else None)

    def fill(self, file):
        """Assigns every parameter its tensor, and fails if a parameter or a tensor is left over."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        missing = set(parameters)
        for name, values in file.read_all():
            places = self.layout.parameters(name)
            if not places:
                continue
            values = torch.from_numpy(self.layout.arranged(name, values)).to(self.device)
            for place in places:
                if place not in parameters or parameters[place].shape != values.shape:
                    raise ValueError(f"tensor {name} does not fit {place}")
                parameters[place].copy_(values)
                missing.discard(place)
        if missing:
            raise ValueError(f"the file has nothing for {sorted(missing)}")

    def check_rotations(self, file):
        """Compares the frequencies that transformers computes with the file's."""
        factors = file.read(layout.ROPE_FACTORS) if self.layout.extended else None
        want = torch.from_numpy(self.layout.frequencies(factors))
        got = self.model.model.rotary_emb.inv_freq.double().cpu()
        if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-5, atol=0):
            raise ValueError("transformers rotates by other frequencies than the file says")

    @torch.no_grad()
    def logprobs(self, ids, kind):
        """Logprobs of what follows each token of ids, (tokens, vocabulary) in float32. Weights and activations are of the type;
        the frequencies of rotations stay in float32, as in a model that transformers loads in a type. Attention in float32 is
        plain products and a softmax."""
        for key, p in self.model.named_parameters():
            p.data = self.weights[key].to(DTYPES[kind])
        with sdpa_kernel(SDPBackend.MATH) if kind == "f32" else contextlib.nullcontext():
            logits = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)
