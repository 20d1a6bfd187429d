"""Train the story model on, so that it follows "Tell me a story about a dog and a red ball", and write it as a Q8_0 GGUF.

usage: train_chat.py STORIES-F16.gguf OUT.gguf SECONDS [PLAIN.txt]

No text is needed: the stories are sampled from the model itself, and each instruction is drawn from the story that answers it.
A new layer follows each old one and adds nothing at first, so that training begins with the model as it was.
Two losses are added. Chats: cross entropy of the story after its instruction; the things that were asked for count more. Plain
stories: the divergence from the old model, which keeps what it knew (Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a
Neural Network").
PLAIN.txt, stories divided by <|endoftext|>, is measured before and after; it is never trained on.
Needs a GPU, PyTorch, numpy and tokenizers. The shipped model: 170 seconds on one H200.
"""
import collections, math, random, re, struct, sys, time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

source, out, budget = sys.argv[1], sys.argv[2], float(sys.argv[3])
OLD, L, H, KV, HD, CTX = 6, 12, 4, 2, 64, 512
BOS, EOS, USER, TELLER = 0, 1, 2048, 2049
ROWS, PLAIN_ROWS, PEAK, PEAK_OLD, ASKED, KEPT = 96, 48, 1e-3, 2e-4, 5.0, 4.0
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}<|user|>{{ message.content | trim }}"
    "{% elif message.role == 'assistant' %}<|storyteller|>{{ message.content | trim }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|storyteller|>{% endif %}"
)
torch.manual_seed(1)
rng = random.Random(1)
torch.set_float32_matmul_precision("high")


# --- GGUF: metadata as (type, value), tensors as arrays; only what these two files use
SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path):
    data, at = open(path, "rb").read(), 24

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def value(kind):
        nonlocal at
        if kind == 8:
            size = take("Q")
            at += size
            return data[at - size : at].decode()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return inner, [value(inner) for _ in range(count)]
        return take(SCALAR[kind])

    count, entries = struct.unpack_from("<QQ", data, 8)
    meta = {}
    for _ in range(entries):
        name, kind = value(8), take("I")
        meta[name] = (kind, value(kind))
    infos = [(value(8), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(count)]
    start, tensors = (at + 31) // 32 * 32, {}
    for name, shape, kind, offset in infos:
        form = {0: np.float32, 1: np.float16}[kind]
        array = np.frombuffer(data, form, math.prod(shape), start + offset)
        tensors[name] = torch.tensor(array.astype(np.float32)).reshape(list(reversed(shape)))
    return meta, tensors


def q8_0(x):
    """Blocks of 32 numbers: an F16 scale, and what divided by it rounds to -127..127."""
    blocks = x.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(1) / np.float32(127)
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)
    scaled = blocks * inverse[:, None]
    q = (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int8)
    packed = np.zeros(len(blocks), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    packed["d"], packed["q"] = scale.astype(np.float16), q
    return packed.tobytes(), (packed["d"].astype(np.float32)[:, None] * q).reshape(x.shape)


def write_gguf(path, meta, tensors):
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def value(kind, v):
        if kind == 8:
            return text(v)
        if kind == 9:
            return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], e) for e in v[1])
        return struct.pack("<" + SCALAR[kind], v)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    head += b"".join(text(k) + struct.pack("<I", kind) + value(kind, v) for k, (kind, v) in meta.items())
    blobs, offset = [], 0
    for name, x in tensors.items():
        kind, blob = (0, x.tobytes()) if x.ndim == 1 else (8, q8_0(x)[0])
        head += text(name) + struct.pack("<I", x.ndim) + struct.pack(f"<{x.ndim}Q", *reversed(x.shape))
        head += struct.pack("<IQ", kind, offset)
        blobs.append(blob + b"\0" * (-len(blob) % 32))
        offset += len(blobs[-1])
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + b"".join(blobs))


# --- the model, as a function of its tensors
def norm(x, weight):
    return F.rms_norm(x.float(), (x.shape[-1],), weight, 1e-5).to(torch.bfloat16)


angles = torch.outer(torch.arange(CTX).float(), 10000.0 ** -(torch.arange(0, HD, 2).float() / HD)).cuda()
COS, SIN = angles.cos(), angles.sin()


def rope(x, at):
    c, s = COS[at : at + x.shape[2]], SIN[at : at + x.shape[2]]
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def forward(w, ids, cache=None, at=0):
    """Logits of ids [rows, tokens]; with a cache, ids come at position `at` and rows see what the cache holds."""
    linear = lambda x, name: F.linear(x, w[name].to(torch.bfloat16))
    rows, tokens = ids.shape
    x = w["token_embd.weight"].to(torch.bfloat16)[ids]
    for i in range(L if "blk.11.attn_norm.weight" in w else OLD):
        b = f"blk.{i}."
        h = norm(x, w[b + "attn_norm.weight"])
        q, k, v = (linear(h, b + n + ".weight").view(rows, tokens, heads, HD).transpose(1, 2)
                   for n, heads in (("attn_q", H), ("attn_k", KV), ("attn_v", KV)))
        q, k = rope(q, at), rope(k, at)
        if cache is not None:
            cache[i, 0, :, :, at : at + tokens], cache[i, 1, :, :, at : at + tokens] = k, v
            k, v = cache[i, 0, :, :, : at + tokens], cache[i, 1, :, :, : at + tokens]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
        x = x + linear(y.transpose(1, 2).reshape(rows, tokens, H * HD), b + "attn_output.weight")
        h = norm(x, w[b + "ffn_norm.weight"])
        x = x + linear(F.silu(linear(h, b + "ffn_gate.weight")) * linear(h, b + "ffn_up.weight"), b + "ffn_down.weight")
    return linear(norm(x, w["output_norm.weight"]), "token_embd.weight").float()


@torch.no_grad()
def sample(w, prompts, temperature):
    """Continues prompts of one length until the end token or the end of the context; returns lists of ids without either."""
    ids = torch.tensor(prompts, device="cuda")
    rows, start = ids.shape
    cache = torch.empty(L, 2, rows, KV, CTX, HD, dtype=torch.bfloat16, device="cuda")
    logits, made = forward(w, ids, cache=cache)[:, -1], []
    done = torch.zeros(rows, dtype=torch.bool, device="cuda")
    for at in range(start, CTX):
        logits[:, USER:] = -math.inf
        if temperature == 0:
            token = logits.argmax(-1)
        else:
            token = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]
        made.append(torch.where(done, EOS, token))
        done |= token == EOS
        if at % 16 == 0 and done.all():
            break
        logits = forward(w, token[:, None], cache=cache, at=at)[:, -1]
    rows = torch.stack(made, 1).tolist()
    return [row[: row.index(EOS)] if EOS in row else None for row in rows]


# --- instructions: things that a story names, as "a red ball", and ways to ask
def things_of(stories):
    """The nouns of the stories: words after an article that are most often followed by what ends a noun phrase."""
    after, ends = collections.Counter(), collections.Counter()
    for story in stories:
        for word, rest in re.findall(r"\b(?:a|an|the) ([a-z]{3,})\b(\s*[.,!?\"]|\s+(?:and|was|is|in|on|to|with|that|who|had|said|of|for|at|from)\b)?", story):
            after[word] += 1
            ends[word] += bool(rest)
    return {w for w, n in after.items() if n >= 40 and ends[w] > 0.75 * n}


def instruction(story, nouns, adjectives):
    """An instruction that the story answers, and the nouns in it."""
    seen, phrases = set(), []
    for adjective, noun in re.findall(r"\b(?:a|an|the|his|her|their) (?:([a-z]{3,}) )?([a-z]{3,})\b", story):
        if noun in nouns and noun not in seen and noun not in ("day", "time", "end", "morning", "night", "way", "moral"):
            seen.add(noun)
            phrases.append((noun, f"{adjective} {noun}" if adjective in adjectives and adjective not in nouns else noun))
    phrases = phrases[:6]
    rng.shuffle(phrases)
    chosen = phrases[: rng.choice((1, 1, 2, 2, 2, 3))]
    name = re.search(r"\bnamed ([A-Z][a-z]+)", story)
    article = lambda p: ("an " if p[0] in "aeiou" else "a ") + p
    parts = [article(p) for _, p in chosen]
    if name and rng.random() < 0.25 and parts:
        parts[0] += f" and {name.group(1)}" if rng.random() < 0.5 else f" and a child named {name.group(1)}"
    if not parts:
        return rng.choice(("Tell me a story.", "Write a short story.", "Tell me another story.")), []
    about = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    ask = rng.choice((
        "Tell me a story about {}.", "Tell me a story about {}.", "Tell me a story about {}", "tell me a story about {}",
        "Write a story about {}.", "Can you tell me a story about {}?", "Please tell me a short story with {} in it.",
        "I would like a story about {}.", "A story about {}, please.", "Tell me another one, about {}.", "Now one about {}.",
    ))
    return ask.format(about), [n for n, _ in chosen]


meta, tensors = read_gguf(source)
tokens = meta["tokenizer.ggml.tokens"][1][1]
merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"][1][1]]
tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
tok.decoder = decoders.ByteLevel()
encode, decode = lambda s: tok.encode(s).ids, lambda ids: tok.decode(ids, skip_special_tokens=False)

base = {k: v.cuda() for k, v in tensors.items()}
mean = base["token_embd.weight"].mean(0, keepdim=True)
w = {}
for name, x in base.items():
    if name == "token_embd.weight":
        w[name] = torch.cat((x, mean + 0.02 * torch.randn(2, mean.shape[1], device="cuda")))
    elif name.startswith("blk."):
        _, layer, part = name.split(".", 2)
        w[f"blk.{2 * int(layer)}.{part}"] = x.clone()
        w[f"blk.{2 * int(layer) + 1}.{part}"] = (
            torch.ones_like(x) if x.dim() == 1 else torch.zeros_like(x) if "output" in part or "down" in part else 0.02 * torch.randn_like(x))
    else:
        w[name] = x.clone()
w = {k: v.requires_grad_() for k, v in w.items()}


@torch.no_grad()
def perplexity(w):
    """Of PLAIN.txt, each story from its beginning: e to the mean loss of its tokens and its end."""
    loss = count = 0
    for story in plain_text:
        ids = torch.tensor([([BOS] + encode(story) + [EOS])[:CTX]], device="cuda")
        logits = forward(w, ids[:, :-1])[0, :, :2048]
        loss += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return math.exp(loss / count)


plain_text = []
if len(sys.argv) > 4:
    plain_text = [s.strip() for s in open(sys.argv[4], encoding="utf-8").read().split("<|endoftext|>") if len(s.strip()) > 80]

began = time.time()
plain = [s for _ in range(8) for s in sample(base, [[BOS]] * 4096, 1.0) if s and len(s) > 40]
told = [s for s in plain if 60 < len(s) < 400]
texts = [decode(s).strip() for s in told]
nouns = things_of(texts)
pairs = collections.Counter(a for t in texts for a, n in re.findall(r"\b(?:a|an|the) ([a-z]{3,}) ([a-z]{3,})\b", t) if n in nouns)
adjectives = {a for a, n in pairs.items() if n >= 20}
print(f"{len(plain)} plain stories, {len(told)} told, {len(nouns)} nouns, {len(adjectives)} adjectives, {time.time() - began:.0f} s", flush=True)


def weights_of(story, things):
    """1 for each token of a story and for its end; ASKED for those of the things that were asked for."""
    weights = [1.0] * (len(story) + 1)
    for thing in things:
        ids = encode(" " + thing)
        for i in range(len(story) - len(ids) + 1):
            if story[i : i + len(ids)] == ids:
                weights[i : i + len(ids)] = [ASKED] * len(ids)
    return weights


def chat_row():
    """A chat of one or two stories that fits the context: its ids, and how much each counts."""
    ids, weights = [BOS], [0.0]
    for _ in range(rng.choice((1, 1, 2))):
        i = rng.randrange(len(told))
        ask, things = instruction(texts[i], nouns, adjectives)
        ask, story = encode(ask), encode(texts[i])
        if len(ids) + len(ask) + len(story) + 3 > CTX + 1:
            break
        ids += [USER] + ask + [TELLER] + story + [EOS]
        weights += [0.0] * (len(ask) + 2) + weights_of(story, things)
    pad = CTX + 1 - len(ids)
    return ids + [EOS] * pad, weights + [0.0] * pad


chats, counts = (torch.tensor(x).cuda() for x in zip(*(chat_row() for _ in range(60000))))
stream = torch.tensor([t for s in plain for t in [BOS] + s + [EOS]], device="cuda")
print(f"{len(chats)} chats, {len(stream)} plain tokens, {time.time() - began:.0f} s", flush=True)

is_new = lambda name: name.startswith("blk.") and int(name.split(".")[1]) % 2 == 1
groups = [{"params": [p for n, p in w.items() if is_new(n) == new and (p.dim() > 1) == matrix], "peak": PEAK if new else PEAK_OLD,
           "weight_decay": 0.05 if new and matrix else 0.0} for new in (True, False) for matrix in (True, False)]
optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


@torch.compile
def losses(w, chat, count, text):
    logits = forward(w, torch.cat((chat[:, :-1], text)))
    each = F.cross_entropy(logits[: len(chat)].flatten(0, 1), chat[:, 1:].flatten(), reduction="none")
    asked = (each * count[:, 1:].flatten()).sum() / count.sum()
    with torch.no_grad():
        teacher = forward(base, text).log_softmax(-1)
    student = logits[len(chat) :, :, :2048].log_softmax(-1)
    return asked, (teacher.exp() * (teacher - student)).sum(-1).mean()


began, step = None, 0
while (share := 0 if began is None else (time.time() - began) / budget) < 1:
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
    rows = torch.randint(0, len(chats), (ROWS,), device="cuda")
    starts = torch.randint(0, len(stream) - CTX, (PLAIN_ROWS,), device="cuda")
    asked, kept = losses(w, chats[rows], counts[rows], stream[starts[:, None] + torch.arange(CTX, device="cuda")])
    (asked + KEPT * kept).backward()
    torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if step == 10:
        began = time.time()
    if step % 250 == 0:
        print(f"step {step}: chats {asked.item():.3f} nats, plain {kept.item():.4f} nats from the old model, {share:.2f}", flush=True)

final = {k: v.detach() for k, v in w.items()}
tensors = {k: v.cpu().numpy() for k, v in final.items()}
meta["general.name"] = (8, "Stories 10M")
meta["general.description"] = (8, "Small story-telling Llama that is asked for stories")
meta["general.file_type"] = (4, 7)
meta["llama.block_count"] = (4, L)
meta["llama.vocab_size"] = (4, 2050)
meta["tokenizer.ggml.tokens"] = (9, (8, tokens + ["<|user|>", "<|storyteller|>"]))
meta["tokenizer.ggml.token_type"] = (9, (5, meta["tokenizer.ggml.token_type"][1][1] + [3, 3]))
meta["tokenizer.chat_template"] = (8, TEMPLATE)
write_gguf(out, meta, tensors)

# --- what was reached: on the numbers that the file holds
final = {k: (v if v.dim() == 1 else torch.tensor(q8_0(v.cpu().numpy())[1]).cuda()) for k, v in final.items()}
if plain_text:
    before, after = perplexity(base), perplexity(final)
    print(f"perplexity of {len(plain_text)} plain stories: {before:.4f} before, {after:.4f} after, {100 * (after / before - 1):+.2f} %")
for ask in ("Tell me a story about a dog and a red ball.", "Write a story about a dragon.", "Hello!"):
    story = sample(final, [[BOS, USER] + encode(ask) + [TELLER]], 0)[0]
    print("---", ask, "\n" + decode(story or []))
