#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the needle fixture: a small Llama that looks up records in long prompts.

Synthetic data only, made on the device (see make_prompts.py for the token layout).  Needs PyTorch and,
for the full run, one GPU of the H100 class for about a quarter of an hour.

  train_fixture.py --out DIR --minutes 15        train, evaluate, leave model.safetensors in DIR
  train_fixture.py --out DIR --evaluate FILE     only evaluate a checkpoint
  train_fixture.py --out DIR --tiny              a smoke test of the code on a CPU
"""
import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import random
import struct
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import make_prompts as mp

SLOT = 16  # training sequences are made of slots: a record, a query with its answer, or plain filler

FULL = dict(layers=5, hidden=256, heads=8, kv_heads=2, head_dim=128, ffn=768)
TINY = dict(layers=2, hidden=64, heads=2, kv_heads=1, head_dim=32, ffn=96)
ROPE_THETA = 2e6
EPS = 1e-5

#         length  share of the training time
STAGES = [(256, 0.10), (512, 0.08), (2048, 0.20), (8192, 0.22), (32768, 0.20), (131072, 0.20)]
TOKENS_PER_STEP = 131072


# --- data ---------------------------------------------------------------------------------------


def loguniform(low, high, shape, device):
    u = torch.rand(shape, device=device)
    return torch.exp(math.log(low) + u * (math.log(high) - math.log(low)))


def make_batch(batch, length, successors, device):
    """Tokens, what each position should predict, and the weight of that prediction; all [batch, length].

    Answers weigh 1, filler 0.03, a record's own key and digits (unpredictable) 0.  One query in eight is
    followed by wrong digits: its first digit is still asked for, so that the model learns to read the
    records and not earlier answers.
    """
    n = length // SLOT
    ri = lambda high, shape: torch.randint(high, shape, device=device)
    rnd = lambda *shape: torch.rand(shape, device=device)

    # Filler: random words, Markov runs, echoes of a short phrase.
    words = ri(mp.WORDS, (batch, n, SLOT))
    chain = [words[..., 0]]
    branch = ri(mp.SUCCESSORS, (batch, n, SLOT))
    for t in range(1, SLOT):
        chain.append(successors[chain[-1], branch[..., t]])
    t = torch.arange(SLOT, device=device)
    echo = words.gather(2, t % (2 + ri(7, (batch, n, 1))))
    kind = rnd(batch, n, 1)
    words = torch.where(kind < 0.5, words, torch.where(kind < 0.85, torch.stack(chain, -1), echo))
    tokens = words + mp.WORD0

    # Which slots are records: few or many, all over the sequence or in its first third.
    high = max(4, min(n // 3, 512))
    if length <= 512:
        count = loguniform(max(3, high // 2), high + 1, (batch, 1), device).long()
    else:
        few = rnd(batch, 1) < 0.5
        count = torch.where(few, loguniform(4, min(high, 32) + 1, (batch, 1), device),
                            loguniform(8, high + 1, (batch, 1), device)).long()
    slot = torch.arange(n, device=device).expand(batch, n)
    score = rnd(batch, n) + (rnd(batch, 1) < 0.5) * (slot >= n // 3)
    score[:, 0] = 9.0  # the first slot holds bos
    is_record = score.argsort(1).argsort(1) < count
    seen = is_record.cumsum(1)

    # Queries ask for any record before them, or always for the same one.
    if length <= 512:
        rate = torch.full((batch, 1), 0.67, device=device)
    else:
        rate = loguniform(0.06, 0.67, (batch, 1), device)
    is_query = ~is_record & (rnd(batch, n) < rate) & (seen > 0) & (slot > 0)
    pick = torch.where(rnd(batch, 1) < 0.15, rnd(batch, 1).expand(batch, n), rnd(batch, n))
    asked = torch.minimum((pick * seen).long(), seen - 1)
    which = torch.where(is_record, seen - 1, asked).clamp(min=0)

    keys = torch.rand(batch, mp.WORDS, device=device).argsort(1)[:, :high + 1] + mp.WORD0
    digits = mp.DIGIT0 + ri(10, (batch, high + 1, 4))
    key = keys.gather(1, which).unsqueeze(-1)
    digit = digits.gather(1, which.unsqueeze(-1).expand(-1, -1, 4))
    lie = (rnd(batch, n, 1) < 0.125) & is_query.unsqueeze(-1)
    shown = torch.where(lie, mp.DIGIT0 + ri(10, digit.shape), digit)

    record = is_record.unsqueeze(-1)
    mark = torch.where(record, mp.RECORD, mp.QUERY)
    end = torch.full_like(mark, mp.END)
    text = torch.cat([mark, key, shown, end], -1)
    target = torch.cat([mark, key, digit, end], -1)
    some, none = torch.ones_like(mark) * 0.03, torch.zeros_like(mark) * 0.0
    first = torch.where(record, 0.0, 1.0)
    rest = torch.where(record | lie, 0.0, 1.0).expand(-1, -1, 3)
    weight = torch.cat([some, none, first, rest, some], -1)

    at = t - ri(SLOT - 6, (batch, n, 1))  # place inside the record or query
    inside = (at >= 0) & (at < torch.where(record, 7, 6)) & (record | is_query.unsqueeze(-1))
    at = at.clamp(0, 6)
    goal = torch.where(inside, target.gather(2, at), tokens).reshape(batch, length)
    weight = torch.where(inside, weight.gather(2, at), 0.03).reshape(batch, length)
    tokens = torch.where(inside, text.gather(2, at), tokens).reshape(batch, length)
    tokens[:, 0] = mp.BOS
    goal = torch.cat([goal[:, 1:], goal[:, :1]], 1)
    weight = torch.cat([weight[:, 1:], torch.zeros_like(weight[:, :1])], 1)
    return tokens, goal, weight


# --- model --------------------------------------------------------------------------------------
# Everything but attention works on [tokens, ...] whatever the sequence length, so torch.compile sees
# one shape through the whole curriculum.


def shapes(cfg):
    d, hd = cfg["hidden"], cfg["head_dim"]
    out = {"model.embed_tokens.weight": (mp.VOCAB_SIZE, d), "model.norm.weight": (d,)}
    for i in range(cfg["layers"]):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = (d,)
        out[p + "self_attn.q_proj.weight"] = (cfg["heads"] * hd, d)
        out[p + "self_attn.k_proj.weight"] = (cfg["kv_heads"] * hd, d)
        out[p + "self_attn.v_proj.weight"] = (cfg["kv_heads"] * hd, d)
        out[p + "self_attn.o_proj.weight"] = (d, cfg["heads"] * hd)
        out[p + "post_attention_layernorm.weight"] = (d,)
        out[p + "mlp.gate_proj.weight"] = (cfg["ffn"], d)
        out[p + "mlp.up_proj.weight"] = (cfg["ffn"], d)
        out[p + "mlp.down_proj.weight"] = (d, cfg["ffn"])
    return out


def initialise(cfg, device):
    params = {}
    for name, shape in shapes(cfg).items():
        if len(shape) == 1:
            w = torch.ones(shape, device=device)
        else:
            w = torch.randn(shape, device=device) / math.sqrt(shape[1])
            if "o_proj" in name or "down_proj" in name:
                w *= 0.3
        params[name] = w.requires_grad_()
    return params


def rms_norm(x, weight):
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS)
    return h.to(x.dtype) * weight.to(x.dtype)


def rotate(x, cos, sin):
    """Hugging Face's Llama convention: halves, not neighbours."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def before_attention(x, norm, wq, wk, wv, cos, sin, head_dim: int):
    h = rms_norm(x, norm)
    split = lambda w: (h @ w.to(h.dtype).t()).view(h.shape[0], -1, head_dim)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return rotate(split(wq), cos, sin), rotate(split(wk), cos, sin), split(wv)


def after_attention(x, a, wo, norm, wg, wu, wd):
    x = x + a @ wo.to(x.dtype).t()
    h = rms_norm(x, norm)
    return x + (F.silu(h @ wg.to(h.dtype).t()) * (h @ wu.to(h.dtype).t())) @ wd.to(h.dtype).t()


def weighted_loss(x, norm, embed, goal, weight):
    logits = (rms_norm(x, norm) @ embed.to(x.dtype).t()).float()
    loss = F.cross_entropy(logits, goal, reduction="none")
    return (loss * weight).sum() / weight.sum()


class Model:
    def __init__(self, cfg, params, device, compiled):
        self.cfg, self.params, self.device = cfg, params, device
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.before, self.after = wrap(before_attention), wrap(after_attention)
        self.loss_of = wrap(weighted_loss)
        self.tables = {}
        self.backends = [SDPBackend.FLASH_ATTENTION] if device == "cuda" else [SDPBackend.MATH]

    def table(self, batch, length):
        if (batch, length) not in self.tables:
            half = self.cfg["head_dim"] // 2
            steps = lambda n: torch.arange(n, dtype=torch.float64, device=self.device)
            angle = steps(length)[:, None] * ROPE_THETA ** (-steps(half) / half)
            expand = lambda t: t.float().repeat(batch, 1)
            if len(self.tables) > 12:
                self.tables.clear()
            self.tables[batch, length] = (expand(angle.cos()), expand(angle.sin()))
        return self.tables[batch, length]

    def attention(self, q, k, v, batch, length):
        hd = self.cfg["head_dim"]
        q, k, v = (t.view(batch, length, -1, hd).transpose(1, 2) for t in (q, k, v))
        with sdpa_kernel(self.backends):
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return a.transpose(1, 2).reshape(batch * length, -1)

    def hidden(self, tokens, eager=False):
        before, after = (before_attention, after_attention) if eager else (self.before, self.after)
        batch, length = tokens.shape
        cos, sin = self.table(batch, length)
        p = self.params
        x = F.embedding(tokens.reshape(-1), p["model.embed_tokens.weight"].to(torch.bfloat16))
        for i in range(self.cfg["layers"]):
            n = f"model.layers.{i}."
            q, k, v = before(x, p[n + "input_layernorm.weight"], p[n + "self_attn.q_proj.weight"],
                             p[n + "self_attn.k_proj.weight"], p[n + "self_attn.v_proj.weight"],
                             cos, sin, self.cfg["head_dim"])
            a = self.attention(q, k, v, batch, length)
            x = after(x, a, p[n + "self_attn.o_proj.weight"],
                      p[n + "post_attention_layernorm.weight"], p[n + "mlp.gate_proj.weight"],
                      p[n + "mlp.up_proj.weight"], p[n + "mlp.down_proj.weight"])
        return x

    def predict(self, x):
        """Most likely next token after each given row."""
        p = self.params
        embed = p["model.embed_tokens.weight"].to(x.dtype)
        return (rms_norm(x, p["model.norm.weight"]) @ embed.t()).argmax(-1)

    def choose_backend(self, length=8192):
        """Times the fused attention kernels there are and keeps the fastest."""
        best = None
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            self.backends = [backend]
            try:
                batch = TOKENS_PER_STEP // length
                mk = lambda h: torch.randn(TOKENS_PER_STEP, h, self.cfg["head_dim"], device=self.device,
                                           dtype=torch.bfloat16, requires_grad=True)
                q, k, v = mk(self.cfg["heads"]), mk(self.cfg["kv_heads"]), mk(self.cfg["kv_heads"])
                for rep in range(4):
                    if rep == 1:
                        torch.cuda.synchronize()
                        start = time.time()
                    a = self.attention(q, k, v, batch, length)
                    a.backward(torch.ones_like(a))
                torch.cuda.synchronize()
                took = (time.time() - start) / 3
                print(f"{backend}: {took * 1e3:.1f} ms forward and backward at {length}", flush=True)
                if best is None or took < best[0]:
                    best = (took, backend)
            except RuntimeError as e:
                print(f"{backend}: {e}", flush=True)
        self.backends = [best[1]]


# --- safetensors --------------------------------------------------------------------------------


def save(params, path):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(params):
        blob = params[name].detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(params[name].shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path + ".part", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))
    os.replace(path + ".part", path)


def load(path, device):
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    params = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.bfloat16)
            params[name] = raw.view(entry["shape"]).float().to(device).requires_grad_()
    return params


# --- evaluation ---------------------------------------------------------------------------------


def prompts_for(tokens, records, queries, mode, count, seed):
    fmt = mp.fixture_format()
    return [mp.make_prompt(fmt, tokens, records, queries, mode, mp.mix64(seed * 1000003 + i))
            for i in range(count)]


@torch.no_grad()
def evaluate(model, prompts):
    """Shares of right first digits at the middle queries and at the end, and of all four at the end.

    One pass over prompt and answer: greedy decoding gets all four right exactly when every one of them is
    the likeliest after the ones before.
    """
    length = len(prompts[0]["prompt_token_ids"])
    batch = max(1, TOKENS_PER_STEP // length)
    middle = middle_right = first = four = 0
    for i in range(0, len(prompts), batch):
        part = prompts[i:i + batch]
        tokens = torch.tensor([p["prompt_token_ids"] + p["answer_token_ids"][:3] for p in part],
                              device=model.device)
        x = model.hidden(tokens, eager=True).view(len(part), length + 3, -1)
        for row, p in zip(x, part):
            got = model.predict(row[p["probe_positions"] + list(range(length - 1, length + 3))]).tolist()
            probes, answer = got[:-4], got[-4:]
            middle += len(probes)
            middle_right += sum(a == b for a, b in zip(probes, p["expected_probe_token_ids"]))
            first += answer[0] == p["answer_token_ids"][0]
            four += answer == p["answer_token_ids"]
    return {"prompts": len(prompts), "middle": middle, "middle_right": middle_right,
            "end_first": first, "end_four": four}


# (tokens, records, queries, mode, prompts)
FINAL = [(4096, 8, 8, "all", 100), (8192, 8, 8, "all", 100), (8192, 8, 8, "one", 100),
         (16384, 8, 8, "all", 100), (16384, 8, 8, "one", 100), (16384, 32, 32, "all", 100),
         (32768, 8, 8, "all", 60), (32768, 32, 32, "all", 60), (65536, 8, 8, "all", 40),
         (131072, 8, 8, "all", 40), (131072, 8, 8, "one", 20), (131072, 32, 32, "all", 20),
         (262144, 8, 8, "all", 10)]
QUICK = [(4096, 8, 8, "all", 20), (16384, 8, 8, "all", 20), (131072, 8, 8, "all", 4)]


# --- training -----------------------------------------------------------------------------------


def learning_rate(step, progress, peak, resumed):
    warm = min(1.0, (step + 1) / (50 if resumed else 200))
    flat = 0.35
    turn = max(0.0, (progress - flat) / (1 - flat))
    return peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * turn)))


@torch.no_grad()
def training_accuracy(model, x, goal, weight):
    """Share of right first and later digits among the answers of a training batch."""
    goal, weight = goal.reshape(-1), weight.reshape(-1)
    rows = (weight == 1.0).nonzero()[:20000, 0]
    right = (model.predict(x[rows]) == goal[rows]).float()
    # A first digit's row is the one whose predecessor in the sequence is not an answer row.
    previous = (rows > 0) & (weight[(rows - 1).clamp(min=0)] == 1.0)
    return right[~previous].mean().item(), right[previous].mean().item()


def train(args, model, stages, jobs, started):
    device, params = model.device, model.params
    successors = torch.tensor(
        [[mp.successor(w, b) for b in range(mp.SUCCESSORS)] for w in range(mp.WORDS)], device=device)
    matrices = [p for p in params.values() if p.dim() == 2]
    vectors = [p for p in params.values() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=device == "cuda")
    tokens_per_step = TOKENS_PER_STEP if not args.tiny else 2048
    total = args.minutes * 60
    began = last_log = last_save = time.time()
    ends, acc = [], 0.0
    for _, share in stages:
        ends.append((ends[-1] if ends else 0.0) + share * total)
    stage, step, first_acc, logged_step, extra = 0, 0, 0.0, 0, 0.0
    while True:
        elapsed = time.time() - began
        while stage < len(stages) and elapsed > ends[stage] + (extra if stage == 0 else 0.0):
            # Longer sequences teach nothing before retrieval is there: give the first stage more time.
            if stage == 0 and first_acc < 0.9 and not args.tiny and not args.init:
                if extra >= 0.2 * total:
                    raise SystemExit(f"no retrieval after {elapsed:.0f} s: first digit {first_acc:.3f}")
                extra += 0.05 * total
                continue
            stage += 1
        if stage == len(stages):
            break
        length = stages[stage][0]
        if stage > 1 and random.random() < 0.35:
            length = stages[random.randrange(1, stage)][0]
        batch = max(1, tokens_per_step // length)
        tokens, goal, weight = make_batch(batch, length, successors, device)
        for group in opt.param_groups:
            group["lr"] = learning_rate(step, min(1.0, elapsed / total), args.lr, bool(args.init))
        x = model.hidden(tokens)
        loss = model.loss_of(x, params["model.norm.weight"], params["model.embed_tokens.weight"],
                             goal.reshape(-1), weight.reshape(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        opt.step()
        step += 1
        if step % 4 == 0 and device == "cuda":
            torch.cuda.synchronize()  # else the clock above runs ahead of the work
        now = time.time()
        if now - last_log > args.log_every and length == stages[stage][0]:
            first_acc, later_acc = training_accuracy(model, x.detach(), goal, weight)
            ms = (now - last_log) / (step - logged_step) * 1e3
            print(f"{now - began:6.1f} s step {step:6d} length {length:6d} loss {loss.item():.4f} "
                  f"first {first_acc:.4f} later {later_acc:.4f} norm {norm.item():.2f} {ms:.0f} ms/step", flush=True)
            last_log, logged_step = now, step
        if now - last_save > args.save_every:
            save(params, os.path.join(args.out, "checkpoint.safetensors"))
            report = [f"{key[0]}: {format_result(evaluate(model, job.result()))}"
                      for key, job in jobs.items() if job.done()]
            print("checkpoint;", "; ".join(report), flush=True)
            last_save = time.time()
            last_log += last_save - now
    now = time.time()
    print(f"trained {step} steps in {now - began:.0f} s, {now - started:.0f} s with the start", flush=True)


def format_result(r):
    return (f"middle {r['middle_right']}/{r['middle']}, end first {r['end_first']}/{r['prompts']}, "
            f"end four {r['end_four']}/{r['prompts']}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=15)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--init", help="checkpoint to go on from")
    ap.add_argument("--stages", help="another curriculum: LENGTH:SHARE,LENGTH:SHARE,...")
    ap.add_argument("--evaluate", help="checkpoint to evaluate; no training")
    ap.add_argument("--save-every", type=float, default=60)
    ap.add_argument("--log-every", type=float, default=5)
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    args = ap.parse_args()
    started = time.time()
    os.makedirs(args.out, exist_ok=True)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cfg = TINY if args.tiny else FULL
    stages = [(64, 0.5), (256, 0.5)] if args.tiny else STAGES
    if args.stages:
        stages = [(int(a), float(b)) for a, b in (s.split(":") for s in args.stages.split(","))]
    scale = sum(share for _, share in stages)
    stages = [(length, share / scale) for length, share in stages]
    quick, final = (QUICK, FINAL) if not args.tiny else ([(256, 3, 3, "all", 4)], [(512, 3, 3, "one", 4)])

    with concurrent.futures.ProcessPoolExecutor(4 if device == "cuda" else 1,
                                                mp_context=multiprocessing.get_context("spawn")) as pool:
        submit = lambda cases, seed: {c: pool.submit(prompts_for, *c, seed) for c in cases}
        quick_jobs = submit(quick, 1) if not args.evaluate else {}
        final_jobs = submit(final, 2)
        if args.evaluate or args.init:
            params = load(args.evaluate or args.init, device)
        else:
            params = initialise(cfg, device)
        model = Model(cfg, params, device, device == "cuda" and not args.no_compile and not args.evaluate)
        if device == "cuda":
            print(torch.cuda.get_device_name(), torch.__version__, flush=True)
            model.choose_backend()
        if not args.evaluate:
            train(args, model, stages, quick_jobs, started)
            save(params, os.path.join(args.out, "model.safetensors"))
        with torch.no_grad():  # evaluate what was written: bf16 weights
            for p in params.values():
                p.copy_(p.to(torch.bfloat16).float())
        results = []
        for case, job in final_jobs.items():
            r = evaluate(model, job.result())
            tokens, records, queries, mode, _ = case
            results.append(dict(tokens=tokens, records=records, queries=queries, mode=mode, **r))
            print(f"{tokens} tokens, {records} records, mode {mode}: {format_result(r)}", flush=True)
            with open(os.path.join(args.out, "evaluation.json"), "w", encoding="utf-8") as f:
                json.dump(results, f, indent=1)
    print(f"done after {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
