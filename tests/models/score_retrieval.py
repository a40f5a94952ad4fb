#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores a service's answers to the prompts of make_prompts.py.

Results are JSON lines {"id", "status", "generated_token_ids", "probe_token_ids", "density"}; a prompt without a
result, or with another status than "ok", counts as wrong.
"""
import argparse
import json


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def share(right, total):
    return right / total if total else None


def score(prompts, results):
    by_id = {r["id"]: r for r in results}
    middle = middle_right = first = four = failed = 0
    density = []
    for p in prompts:
        r = by_id.get(p["id"])
        expected, answer = p["expected_probe_token_ids"], p["answer_token_ids"]
        middle += len(expected)
        if r is None or r.get("status") != "ok":
            failed += 1
            continue
        probes = r.get("probe_token_ids") or []
        generated = r.get("generated_token_ids") or []
        middle_right += sum(a == b for a, b in zip(probes, expected))
        first += generated[:1] == answer[:1]
        four += generated[:len(answer)] == answer
        if r.get("density") is not None:
            density.append(r["density"])
    n = len(prompts)
    return {
        "prompts": n,
        "failed": failed,
        "middle_queries": middle,
        "middle_first_digit": share(middle_right, middle),
        "end_first_digit": share(first, n),
        "end_all_four": share(four, n),
        "mean_density": share(sum(density), len(density)),
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--prompts", required=True)
    ap.add_argument("--results", required=True)
    ap.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = ap.parse_args()
    s = score(read(args.prompts), read(args.results))
    if args.json:
        print(json.dumps(s))
        return
    show = lambda x: "-" if x is None else f"{x:.3f}"
    print(f"prompts                  {s['prompts']} ({s['failed']} failed)")
    print(f"first digit, middle      {show(s['middle_first_digit'])} of {s['middle_queries']} queries")
    print(f"first digit, end         {show(s['end_first_digit'])}")
    print(f"all four digits, end     {show(s['end_all_four'])}")
    print(f"mean density             {show(s['mean_density'])}")


if __name__ == "__main__":
    main()
