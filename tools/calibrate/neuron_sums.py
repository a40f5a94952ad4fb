# SPDX-License-Identifier: Apache-2.0
"""Fits a low-rank map from layer inputs to the contributions of MLP neurons. Needs torch and transformers.

Neuron n of layer l adds z_n * (column n of down) to the residual stream, with z the activated product of gate and up. Its contribution is
|z_n| * |column n|. The input x of layer l, normalised as the layer's norm would do it but without the weights, is fitted to the square root of the
contributions of layer l + 1 (a fit of the contributions themselves would follow a few large ones):

    score = expand^T (reduce x) + bias

The best map of a given rank in least squares has a closed form, reduced-rank regression (Izenman 1975): solve Y on X by ridge regression and take the
leading principal directions of the fit. It needs only the sums X^T X and X^T Y of a layer, so rows need not be kept beyond their prompt, and there
is no seed, rate or number of epochs to choose.
"""

import torch
from bad_input import BadInput
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

# The first rows of a prompt are not used: they have less to attend to than a decoded token.
FIRST_ROW = 64
# Relative to the mean square of an input, which is 1.
_RIDGE = 1e-3
EMBEDDING_ROWS = 16


class LayerSums:
    """Sums of x, y, x x^T and x y^T over the rows of one layer, in double precision."""

    def __init__(self, hidden, neurons):
        self.count = 0
        self.x, self.y = torch.zeros(hidden, dtype=torch.float64), torch.zeros(neurons, dtype=torch.float64)
        self.xx, self.xy = torch.zeros(hidden, hidden, dtype=torch.float64), torch.zeros(hidden, neurons, dtype=torch.float64)

    def add(self, x, y):
        """x: [rows, hidden], y: [rows, neurons], float32."""
        self.count += len(x)
        self.x += x.sum(dim=0)
        self.y += y.sum(dim=0)
        self.xx += x.T @ x
        self.xy += x.T @ y

    def fit(self, rank):
        """Returns reduce [rank, hidden] and expand [rank, neurons] as bfloat16, and bias [neurons] as float32."""
        mean_x, mean_y = self.x / self.count, self.y / self.count
        covariance = self.xx / self.count - mean_x[:, None] * mean_x
        mixed = self.xy / self.count - mean_x[:, None] * mean_y
        root = torch.linalg.cholesky(covariance + _RIDGE * torch.eye(len(mean_x), dtype=torch.float64))
        # The fit is whitened^T (root^-1 x). Its leading directions are eigenvectors of whitened whitened^T.
        whitened = torch.linalg.solve_triangular(root, mixed, upper=False)
        directions = torch.linalg.eigh(whitened @ whitened.T).eigenvectors[:, -rank:]
        expand = directions.T @ whitened
        reduce = torch.linalg.solve_triangular(root.T, directions, upper=True).T
        expand, reduce = expand.to(torch.bfloat16), reduce.to(torch.bfloat16)
        # Computed from the rounded matrices, so that the score at the mean input is the mean contribution.
        bias = mean_y - (reduce.double() @ mean_x) @ expand.double()
        return reduce.contiguous(), expand.contiguous(), bias.float()


def top_mask(values, count):
    """Returns [rows, neurons]: 1 at the `count` greatest values of each row, else 0."""
    return torch.zeros_like(values).scatter_(1, values.topk(count, dim=1).indices, 1)


class Model:
    """A model with an MLP in each layer, from a Hugging Face directory."""

    def __init__(self, directory):
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError) as why:
            raise BadInput(f"--model {directory}: {str(why).splitlines()[0]}") from None
        disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.float32)
        self._model.requires_grad_(False)
        self._model.eval()
        self._layers = self._model.get_decoder().layers
        for number, layer in enumerate(self._layers):
            if not hasattr(getattr(layer, "mlp", None), "down_proj"):
                raise BadInput(f"--model {directory}: layer {number} has no MLP with a down projection, but experts or something else")
        self._eps = config.rms_norm_eps
        self.vocabulary, self.hidden, self.neurons = config.vocab_size, config.hidden_size, self._layers[0].mlp.down_proj.in_features
        self.num_layers = len(self._layers)

    def embedding_rows(self):
        """Returns the embeddings of evenly spread tokens, which identify the model."""
        table = self._model.get_input_embeddings().weight
        count = min(EMBEDDING_ROWS, len(table))
        return torch.stack([table[len(table) * i // count] for i in range(count)])

    def visit(self, prompt, take):
        """Runs one forward pass and calls take(layer, x, contributions) for each layer but the first, with rows from FIRST_ROW on. x is the input
        of layer - 1."""
        inputs = {}

        def keep_input(number):
            def hook(_, arguments):
                x = arguments[0][0, FIRST_ROW:]
                inputs[number] = x * (x.square().mean(dim=-1, keepdim=True) + self._eps).rsqrt()
            return hook

        def give_contributions(number):
            def hook(down, arguments):
                if number > 0:
                    take(number, inputs.pop(number - 1), arguments[0][0, FIRST_ROW:].abs() * down.weight.norm(dim=0))
            return hook
        hooks = []
        for number, layer in enumerate(self._layers):
            hooks.append(layer.register_forward_pre_hook(keep_input(number)))
            hooks.append(layer.mlp.down_proj.register_forward_pre_hook(give_contributions(number)))
        try:
            self._model.get_decoder()(torch.tensor([prompt.token_ids]), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()

    def fit(self, prompts, rank, say):
        """Returns (reduce, expand, bias) for each layer but the first."""
        sums = [LayerSums(self.hidden, self.neurons) for _ in range(self.num_layers)]
        for prompt in prompts:
            self.visit(prompt, lambda layer, x, contributions: sums[layer].add(x, contributions.sqrt()))
            say(f"{prompt.name}: {len(prompt.token_ids)} tokens")
        return {layer: sums[layer].fit(rank) for layer in range(1, self.num_layers)}

    def recall(self, prompts, layers, shares):
        """Returns, for each share, [layers]: of the share of neurons that contribute most, the part also among as many with the greatest score."""
        counts = [max(1, round(share * self.neurons)) for share in shares]
        found, rows = torch.zeros(len(shares), self.num_layers), torch.zeros(self.num_layers)

        def take(layer, x, contributions):
            reduce, expand, bias = (part.float() for part in layers[layer])
            scores = (x @ reduce.T) @ expand + bias
            for i, count in enumerate(counts):
                found[i, layer] += (top_mask(scores, count) * top_mask(contributions, count)).sum()
            rows[layer] += len(x)
        for prompt in prompts:
            self.visit(prompt, take)
        return {share: (found[i, 1:] / (rows[1:] * counts[i])).tolist() for i, share in enumerate(shares)}
