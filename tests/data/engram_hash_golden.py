"""Prints the numbers in tests/cpp/layers/engram_hash_test.cpp, computed with NumPy and Python integers."""

import numpy as np


def draws(seed: int, *bounds_and_sizes: tuple[int, int]) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(x) for bound, size in bounds_and_sizes for x in generator.integers(0, bound, size=size, dtype=np.int64)]


def rows(layers: list[int], layer: int, max_ngram: int, heads: int, size: int, vocab: int, ids: list[int]) -> list[int]:
    """Hashes the last of ids, all of them known (pad included)."""
    used: list[int] = []
    for _ in layers[: layers.index(layer) + 1]:
        mine: list[int] = []
        for _ in range(2, max_ngram + 1):
            candidate, found = size - 1, 0
            while found < heads:
                candidate += 1
                if candidate not in used and all(candidate % d for d in range(2, int(candidate**0.5) + 1)):
                    used.append(candidate)
                    mine.append(candidate)
                    found += 1
    bound = max(1, ((2**63 - 1) // vocab) // 2)
    multipliers = np.random.default_rng(10007 * layer).integers(0, bound, size=max_ngram, dtype=np.int64) * 2 + 1
    out: list[int] = []
    for n in range(2, max_ngram + 1):
        mixed = 0
        for shift in range(n):
            mixed ^= ids[-1 - shift] * int(multipliers[shift])
        mixed = (mixed + 2**63) % 2**64 - 2**63
        for head in range(heads):
            table = (n - 2) * heads + head
            out.append(mixed % mine[table] + sum(mine[:table]))
    print("num_rows", sum(mine), end=" ")
    return out


if __name__ == "__main__":
    print("64 bit", draws(10007, (2**62 + 1, 10)))
    print("32 bit", draws(10007 * 14, (2**31 + 1, 10)))
    print("2^32", draws(7, (2**32, 3)))
    print("mixed", draws(2**40 + 3, (1000, 3), (2**40, 2), (1, 2), (1000, 3)))
    for layer in (1, 14):
        for vocab in (242, 99092):
            print("bound of", vocab, draws(10007 * layer, (((2**63 - 1) // vocab) // 2, 4)))
    for ids in ([5, 5, 7], [5, 7, 241], [7, 241, 0]):
        print("tiny", ids, rows([1], 1, 3, 2, 61, 242, ids))
    for layer in (1, 14):
        print("released", layer, rows([1, 14], layer, 4, 8, 16_000_000, 99092, [2, 31, 99091, 12345]))
