"""vLLM's `bench serve`, several times in one process: importing vLLM takes as long as a small measurement.

``python -m dspark_train.engine.vllm_bench < argvs.json``: a list of option lists in, one line of JSON a result out.
"""

from __future__ import annotations

import contextlib
import json
import sys


def main() -> None:
    """Measure each of the option lists on standard input; progress goes to standard error."""
    from dspark_train.engine.vllm_entry import answer_version

    answer_version()
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as measure
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for argv in json.load(sys.stdin):
        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(parser.parse_args(argv))
        plain = {key: value for key, value in result.items() if not isinstance(value, list) or len(value) < 100}
        print(json.dumps(plain, default=float), flush=True)


if __name__ == "__main__":
    main()
