"""Models of transformers with the weights of a GGUF file."""

import contextlib
import copy

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import layout

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


# Parameters whose width may differ from layer to layer.
WIDTHS = tuple(f".mlp.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj", "gate_up_proj"))

# A buffer that a version of transformers has in the router and another one outside.
MOVED = ".expert_bias", ".gate.expert_bias"


def require_float32(device):
    """Disables TF32 for float32 products, and fails if the environment enables it all the same."""
    torch.set_float32_matmul_precision("highest")
    a, b = torch.rand(2, 512, 512, generator=torch.Generator().manual_seed(1)).to(device)
    error = (((a @ b).double() - a.double() @ b.double()) / (a.double() @ b.double())).abs().max().item()
    if error > 1e-5:
        raise ValueError(f"products of float32 are {error:.1e} off on {device}")


class Reference:
    """A model on a device: weights in float32, and run in float32, float16 or bfloat16. attention is transformers' name of an
    implementation; eager is the one that has caps of scores."""

    def __init__(self, file, device, attention="sdpa"):
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 17):
            raise ValueError(f"transformers {transformers.__version__}: want 5.17 or later, whose configurations are described here")
        self.device, self.layout = device, layout.Layout(file.metadata, file.shapes, file.read)
        with contextlib.nullcontext() if device == "cpu" else torch.device(device):
            self.model = self.build(attention)
        self.model.float().eval().requires_grad_(False)
        self.fill(file)
        self.rotate()
        self.weights = {key: p.data for key, p in self.model.named_parameters()}

    def build(self, attention):
        of = self.layout.model
        config = getattr(transformers, of.config or of.kind + "Config")(**copy.deepcopy(of.fields))
        config._attn_implementation = attention
        config._experts_implementation = "eager"  # the plain loop over experts
        return getattr(transformers, of.kind + "ForCausalLM")(config)

    @torch.no_grad()
    def fill(self, file):
        """Assigns every parameter its tensor, and fails if a parameter or a tensor is left over."""
        parameters = self.model.state_dict(keep_vars=True)
        embedding = "embed_tokens.weight"
        decoder = next(key for key in parameters if key.endswith(embedding))[: -len(embedding)]
        missing, wrong, halves = set(parameters), [], {}
        for name, values in file.read_all():
            values, half = self.layout.arranged(name, values), self.layout.half(name)
            for place in self.layout.parameters(name):
                if half is not None:
                    other = halves.setdefault(place, {})
                    other[half] = values
                    if len(other) < 2:
                        continue
                    values = self.layout.joined(place, other[0], other[1])
                values = torch.as_tensor(values, device=self.device)
                place = place if place.startswith("lm_head") else decoder + place
                place = place if place in parameters else place.replace(*MOVED)
                missing.discard(place)
                if place in parameters and place.endswith(WIDTHS) and parameters[place].shape != values.shape:
                    self.resize(place, values)
                elif place not in parameters or parameters[place].shape != values.shape:
                    wrong.append(f"{name} {tuple(values.shape)} for {place} {tuple(parameters[place].shape) if place in parameters else ''}")
                else:
                    parameters[place].copy_(values)
        if wrong:
            raise ValueError(f"tensors that fit nothing: {'; '.join(wrong)}; nothing for {sorted(missing)}")
        if missing:
            raise ValueError(f"the file has nothing for {sorted(missing)}")

    def resize(self, place, values):
        """Gives a matrix of an MLP another width: a configuration has one for all layers."""
        module = self.model.get_submodule(place.rsplit(".", 1)[0])
        module.weight = torch.nn.Parameter(values, requires_grad=False)
        module.out_features, module.in_features = values.shape

    def rotate(self):
        """Sets or compares the frequencies that the file has factors for."""
        decoder, fields = self.model.model, self.layout.model.fields
        want = self.layout.frequencies()
        if want is not None:
            rotary, want = decoder.rotary_emb, torch.from_numpy(want)
            if fields["rope_parameters"]["rope_type"] == "default":
                rotary.inv_freq = rotary.original_inv_freq = want.float().to(self.device)
            if not torch.allclose(rotary.inv_freq.double().cpu(), want, rtol=1e-5, atol=0):
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

    @torch.no_grad()
    def final(self, ids):
        """The final hidden states, (tokens, width) in float32."""
        return self.model.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).last_hidden_state[0].float().cpu()

    @torch.no_grad()
    def hidden(self, ids):
        """The residual stream before each layer and the final hidden states, (layers + 1, tokens, width) in float32."""
        out = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False, output_hidden_states=True)
        return torch.stack([each[0].float().cpu() for each in out.hidden_states])
