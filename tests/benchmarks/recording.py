"""What recording costs a forward that is recorded. Run: python -m tests.benchmarks.recording

The tutorial's attention at the tutorial's sizes runs recorded and not, in turn, in one process; the
ratio of each pair counts. It judges nothing: these are figures for docs/benchmarks.md.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attnscope.observe.diagnose.findings import Watcher
from attnscope.observe.instrument.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "code" / "trace" / "code"))


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    from tutorial_mha import MultiHeadedAttention

    parser = argparse.ArgumentParser(description="The overhead of recording, as ratios.")
    parser.add_argument("--runs", type=int, default=200, help="counted pairs")
    runs = parser.parse_args().runs
    module = MultiHeadedAttention(d_feat=200, n_head=5).eval()
    Q, K, V = (torch.randn(128, n, 200) for n in (32, 48, 48))
    with Session(module) as session:

        def plain() -> None:
            module(Q, K, V)

        def recorded() -> None:
            with session.recording():
                module(Q, K, V)

        def watched() -> None:
            with session.recording(watch=Watcher({session.file})):
                module(Q, K, V)

        for name, call in {"recorded": recorded, "recorded, and searched for findings": watched}.items():
            for _ in range(20):  # warm
                plain(), call()
            pairs = [(seconds(call), seconds(plain)) for _ in range(runs)]
            ratio = statistics.median(a / b for a, b in pairs)
            times = [1000 * statistics.median(pair[i] for pair in pairs) for i in (0, 1)]
            print(f"| {name} | {times[0]:.2f} ms | {times[1]:.2f} ms | **{ratio:.2f}** |")


if __name__ == "__main__":
    main()
