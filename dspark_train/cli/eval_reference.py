"""`eval --method reference`: draft and verify in torch, here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspark_train.cli.eval import Asked
from dspark_train.cli.eval_run import quiet
from dspark_train.cli.eval_subject import Subject
from dspark_train.cli.prepare_view import Narrator
from dspark_train.evaluate.outcome import by_domain, by_length, figures
from dspark_train.evaluate.prompts import Prompt


def measure(subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator) -> dict[str, Any]:
    """Figures of the first temperature at the top, all of them in ``by_temperature``."""
    import torch

    from dspark_train.evaluate.drafter import make_drafter, weights_in
    from dspark_train.evaluate.step_cost import measure_step_cost
    from dspark_train.evaluate.target import load_stop_ids, load_target
    from dspark_train.trainer.drafts import load_export

    if not torch.cuda.is_available():
        torch.set_num_threads(asked.threads)
    with narrator.step("target", f"loading {subject.target}", "usually about 10 s"), quiet():
        model = load_export(subject.draft, target=subject.target)
        target = load_target(subject.target, tuple(model.target_layer_ids), trust_remote_code=subject.trust_remote_code)
        model = weights_in(model.to(target.device), target.dtype).eval()
        stop_ids = load_stop_ids(subject.target, trust_remote_code=subject.trust_remote_code)
    drafter = make_drafter(model, asked.num_tokens)
    parts = _Parts(target, drafter, stop_ids, prompts, asked, narrator)
    results = {temperature: parts.at(temperature) for temperature in asked.temperatures}
    first = results[asked.temperatures[0]]
    found = {"method": "reference", "temperature": asked.temperatures[0], **first[0]}
    if len(results) > 1:
        found["by_temperature"] = {f"{key:g}": value for key, (value, _) in results.items()}
    if first[1][0].confidence:
        from dspark_train.evaluate.confidence import judge, store

        with narrator.step("cost", "measuring what a step of the target costs", "a few seconds"):
            cost = measure_step_cost(target)
        found["confidence"] = judge(first[1], cost, asked.loads)
        if asked.calibrate and found["confidence"] is not None:
            found["calibration"] = str(store(subject.draft, found["confidence"], fold=asked.fold))
    return found


class _Parts:
    """One pair of target and draft, and the prompts."""

    def __init__(self, target: Any, drafter: Any, stop_ids: frozenset[int], prompts: Any, asked: Asked, narrator: Any):
        self._target, self._drafter, self._stop_ids = target, drafter, stop_ids
        self._prompts, self._asked, self._narrator = prompts, asked, narrator

    def at(self, temperature: float) -> tuple[dict[str, Any], Any]:
        """Figures at one temperature, and the texts they are of."""
        from dspark_train.evaluate.lossless import check_greedy
        from dspark_train.evaluate.reference import Decoding, generate

        asked = self._asked
        decoding = Decoding(temperature, asked.max_tokens, asked.seed, asked.draft_samples, self._stop_ids)
        how = f"at temperature {temperature:g}" if temperature else "greedily"
        with self._narrator.bar(f"generate-{temperature:g}", f"answering {how}", len(self._prompts)) as bar:
            texts = generate(
                self._target,
                self._drafter,
                self._prompts,
                decoding,
                asked.batch_size,
                lambda num_done: bar.update(num_done, ""),
            )
        pairs = [(text.prompt, text.acceptance(self._drafter.num_tokens)) for text in texts]
        found = figures(by_domain(pairs), by_length(pairs))
        if not temperature:
            with self._narrator.step("lossless", "comparing with the target alone", "a second a prompt on CPU"):
                found["lossless"] = check_greedy(self._target, texts).as_json()
        return found, texts
