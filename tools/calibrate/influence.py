# SPDX-License-Identifier: Apache-2.0
"""Computes how the loss of a model changes, to first order, when a position of its attention is masked. Needs torch and transformers.

Let A = softmax(q k) be a row's attention and G the gradient of the loss by A. Masking key j takes A_j from j and gives it to the other keys in
proportion, A_n / (1 - A_j). To first order the loss then changes by

    E_j = A_j * (sum_n A_n G_n - G_j) / (1 - A_j)

which is MoA's influence with the softmax's renormalisation. The gradient of the loss by the score of j is A_j * (G_j - sum_n A_n G_n), so E is minus
that over 1 - A_j and costs little more than the backward pass of attention. As in MoA's program, |E| is summed, so that the gain of one row does not
hide the loss of another. What a window leaves out of a row depends only on the distance of key and row, so only sums by distance are kept.

Memory: one layer's activations at a time (each layer runs again in the backward pass), logits of judged rows only, and _ROWS rows of one head's
attention.
"""

import contextlib

import torch
from bad_input import BadInput
from spans import PAGE_TOKENS, first_dense_row
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.logging import disable_progress_bar

_ROWS = 256
_NAME = "millrace_calibrate"


def sums_by_distance(values, first_row):
    """Sums values by distance row - key: [first_row + rows], double. values: [rows, keys], of rows from first_row on and keys from 0 on."""
    rows, keys = values.shape
    # With rows one element longer, each diagonal becomes a column.
    width = keys + 2 * rows
    padded = values.new_zeros((rows, width))
    padded[:, rows:rows + keys] = values
    diagonals = padded.as_strided((rows, keys + rows), (width + 1, 1)).sum(dim=0, dtype=torch.float64)
    # Column c has key - local row = c - rows; distances run the other way.
    by_distance = diagonals.flip(0)  # at index i: key - local row = keys - 1 - i
    start = keys - 1 - first_row  # the index of distance 0
    result = values.new_zeros(first_row + rows, dtype=torch.float64)
    length = min(len(result), len(by_distance) - start)
    result[:length] = by_distance[start:start + length]
    return result


class _Attention(torch.autograd.Function):
    """Causal attention of one prompt. Its backward pass also sums influence. q: [heads, rows, dim]; k, v: [kv heads, rows, dim]."""

    @staticmethod
    def forward(ctx, q, k, v, scale, sums):
        out = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True)[0]
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.sums = scale, sums
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v = ctx.saved_tensors
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        heads, num_rows, _ = q.shape
        group = heads // k.shape[0]
        for head in range(heads):
            kv = head // group
            for first in range(0, num_rows, _ROWS):
                end = min(first + _ROWS, num_rows)
                keys, upstream = slice(0, end), d_out[head, first:end]
                scores = (q[head, first:end] @ k[kv, keys].T) * ctx.scale
                scores[:, first:].masked_fill_(torch.ones(end - first, end - first, dtype=torch.bool).triu(1), float("-inf"))
                attention = scores.softmax(dim=-1)
                by_attention = upstream @ v[kv, keys].T
                mean = (attention * by_attention).sum(dim=-1, keepdim=True)
                by_score = attention * (by_attention - mean)
                d_v[kv, keys] += attention.T @ upstream
                d_q[head, first:end] = (by_score @ k[kv, keys]) * ctx.scale
                d_k[kv, keys] += (by_score.T @ q[head, first:end]) * ctx.scale
                _add_influence(ctx.sums[head], by_score, attention, by_attention, first, num_rows)
        return d_q, d_k, d_v, None, None


def influence(by_score, attention, by_attention):
    """Returns E of each position; 0 where masking would leave a row nothing that float32 can represent."""
    top, key = attention.max(dim=-1, keepdim=True)
    # Only the top key can have A near 1, where 1 - A would be only rounding error. Both of its factors are therefore written out.
    others = attention.scatter(-1, key, 0.0)
    rest = others.sum(dim=-1, keepdim=True)
    of_top = top * ((others * by_attention).sum(dim=-1, keepdim=True) / rest - by_attention.gather(-1, key))
    return (-by_score / (1 - others)).scatter(-1, key, torch.where(rest > 0, of_top, 0.0))


def _add_influence(sums, by_score, attention, by_attention, first_row, num_tokens):
    """Adds the influence of the pairs that a window can leave out: not the sink's keys, not the last rows."""
    rows = min(first_row + len(by_score), first_dense_row(num_tokens)) - first_row
    if rows <= 0:
        return
    values = influence(by_score[:rows], attention[:rows], by_attention[:rows]).abs()
    values[:, :PAGE_TOKENS] = 0
    sums[:first_row + rows] += sums_by_distance(values[:, :first_row + rows].contiguous(), first_row)


class Model:
    """A model with full attention in all layers, from a Hugging Face directory."""

    def __init__(self, directory):
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError) as why:
            raise BadInput(f"--model {directory}: {str(why).splitlines()[0]}") from None
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True):
            raise BadInput(f"--model {directory}: sliding_window is {window}: layers with a window of their own need no plan")
        disable_progress_bar()
        self._attend = None
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._attention)
        self._model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.float32, attn_implementation=_NAME)
        self._model.requires_grad_(False)
        self._model.gradient_checkpointing_enable({"use_reentrant": False})
        self._model.train()  # layers are only checkpointed in training mode; dropout is turned off below
        for module in self._model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self.num_layers, self.num_heads, self.vocabulary = config.num_hidden_layers, config.num_attention_heads, config.vocab_size

    def influence(self, prompt):
        """Returns |E| summed by distance: [layers, heads, tokens], double."""
        num_tokens = len(prompt.token_ids)
        sums = torch.zeros(self.num_layers, self.num_heads, num_tokens, dtype=torch.float64)

        def attend(layer, q, k, v, scale):
            return _Attention.apply(q, k, v, scale, sums[layer])
        with self._attending(attend):
            embedded = self._model.get_input_embeddings()(torch.tensor([prompt.token_ids])).detach().requires_grad_()
            self._loss(prompt, inputs_embeds=embedded).backward()
        return sums

    def loss(self, prompt, rules=None):
        """Returns the mean negative log likelihood of the prompt's targets; with rules, [layer][head], under their windows."""
        num_tokens = len(prompt.token_ids)
        windows = rules and [torch.tensor([rule.window(num_tokens) for rule in layer]) for layer in rules]

        def attend(layer, q, k, v, scale):
            return windowed_attention(q, k, v, scale, windows[layer] if windows else torch.full((self.num_heads,), num_tokens))
        with self._attending(attend), torch.no_grad():
            return self._loss(prompt, input_ids=torch.tensor([prompt.token_ids])).item()

    def _loss(self, prompt, **inputs):
        hidden = self._model.base_model(**inputs, use_cache=False).last_hidden_state[0]
        rows, tokens = (torch.tensor(column) for column in zip(*prompt.targets))
        logits = self._model.get_output_embeddings()(hidden[rows])
        return torch.nn.functional.cross_entropy(logits, tokens)

    @contextlib.contextmanager
    def _attending(self, attend):
        self._attend = attend
        try:
            yield
        finally:
            self._attend = None

    def _attention(self, module, query, key, value, mask, scaling, **_):
        """The attention function for transformers: from [1, heads, rows, dim] to [1, rows, heads, dim]."""
        return self._attend(module.layer_idx, query[0], key[0], value[0], scaling).transpose(0, 1)[None].contiguous(), None


def windowed_attention(q, k, v, scale, windows):
    """Causal attention in which each head attends to the sink and its window; the last rows attend to everything."""
    num_rows = q.shape[1]
    parts = []
    for first in range(0, num_rows, _ROWS):
        end = min(first + _ROWS, num_rows)
        row, key = torch.arange(first, end)[:, None], torch.arange(end)
        reach = torch.where(row >= first_dense_row(num_rows), num_rows, windows[:, None, None])
        mask = (key <= row) & ((key < PAGE_TOKENS) | (row - key < reach))
        parts.append(torch.nn.functional.scaled_dot_product_attention(q[None, :, first:end], k[None, :, :end], v[None, :, :end], attn_mask=mask[None],
                                                                      scale=scale, enable_gqa=True)[0])
    return torch.cat(parts, dim=1)
