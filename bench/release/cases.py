# SPDX-License-Identifier: Apache-2.0
"""What a release measures on a machine with so many GPUs, the most telling cases first."""

import dataclasses

K = 1024
MODEL = "synthetic:llama-3-8b"
DENSE, MINFERENCE, ADAPTIVE = "dense", "minference", "adaptive"

# Rough seconds of one prefill on one H100, used only to decide whether a case still fits the time limit.
ONE_GPU_S = {
    8 * K: (0.22, 0.21, 0.2),
    16 * K: (0.48, 0.44, 0.41),
    32 * K: (1.2, 0.9, 0.81),
    128 * K: (10.5, 3.8, 3.5),
    512 * K: (150, 16, 18),
    1024 * K: (600, 32, 45),
}
# Programs start, make weights and measure the machine's rates; a service also makes its pools resident.
START_S, SERVICE_S = 15, 60


@dataclasses.dataclass(frozen=True)
class Prefill:
    """One call of millrace-bench prefill: every plan at every length."""

    tokens: tuple
    plans: tuple
    tp: int = 1
    cp: int = 1
    repeats: int = 3
    warm_ups: int = 1
    quantization: str = "none"
    model: str = MODEL
    bench: str = "prefill"

    @property
    def ranks(self):
        return self.tp * self.cp

    @property
    def estimate_s(self):
        if self.model != MODEL:
            return START_S
        columns = [(DENSE, MINFERENCE, ADAPTIVE).index(plan) for plan in self.plans]
        runs_s = sum(ONE_GPU_S[length][column] for length in self.tokens for column in columns)
        return START_S + runs_s * (self.repeats + self.warm_ups) / self.ranks * 1.2

    def keys(self):
        return [
            (self.bench, self.model, self.tp, self.cp, self.quantization, length, plan)
            for length in self.tokens
            for plan in self.plans
        ]

    def without(self, plan):
        return dataclasses.replace(self, plans=tuple(p for p in self.plans if p != plan))


@dataclasses.dataclass(frozen=True)
class Prefix:
    """One call of bench/prefix/on_device: new tokens behind a prefix in host memory, seconds at the client."""

    tokens: int = 128 * K
    new: int = 2 * K
    tp: int = 1
    cp: int = 1
    repeats: int = 5
    kv_cache_dtype: str = "fp8"
    model: str = MODEL
    bench: str = "prefix"

    @property
    def ranks(self):
        return self.tp * self.cp

    @property
    def estimate_s(self):
        return SERVICE_S + 2 * ONE_GPU_S[self.tokens][2] / self.ranks + self.repeats * 0.5

    def keys(self):
        return [(self.bench, self.model, self.tp, self.cp, self.kv_cache_dtype, self.tokens, self.new)]


def key(row):
    """Returns what tells a row of results from all others of its machine."""
    if row["bench"] == "prefix":
        return (row["bench"], row["model"], row["tp"], row["cp"], row["kv_cache_dtype"], row["tokens"], row["new"])
    return (row["bench"], row["model"], row["tp"], row["cp"], row["quantization"], row["tokens"], row["plan"])


def gpu_cases(gpus):
    sparse = (MINFERENCE, ADAPTIVE)
    cases = []
    grids = [n for n in (8, 4, 2) if n <= gpus]
    for n in grids:
        cases += [Prefill((128 * K,), sparse, cp=n)]
    cases += [
        Prefill((128 * K,), sparse),
        Prefill((8 * K, 16 * K, 32 * K), (DENSE, *sparse)),
        Prefill((128 * K,), sparse, quantization="fp8", repeats=2),
    ]
    for n in grids:
        cases += [Prefill((512 * K,), sparse, cp=n, repeats=1)]
    cases += [Prefill((512 * K,), sparse, repeats=1, warm_ups=0), Prefill((128 * K,), (DENSE,), repeats=1, warm_ups=0)]
    for n in grids:
        cases += [
            Prefill((1024 * K,), sparse, cp=n, repeats=1, warm_ups=0),
            Prefill((128 * K,), sparse, tp=n, repeats=2),
        ]
    cases += [Prefix(cp=n) for n in [*grids, 1]]
    return cases


def cpu_cases(model):
    return [
        Prefill((4 * K, 8 * K, 16 * K), (DENSE, ADAPTIVE), model=model, repeats=1, warm_ups=0),
        Prefill((32 * K,), (DENSE, ADAPTIVE), model=model, repeats=1, warm_ups=0),
    ]
