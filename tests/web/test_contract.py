"""The API against its own OpenAPI document: whatever is sent, the answer is one that the document knows."""

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")

NUM_EXAMPLES = 8
HARMLESS = r"^/(v1/(state|history|events|logs|rebalance|scale)|metrics)"
"""All but stop, since the run is to go on; of what is sent to scale, most is refused."""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_schemathesis_finds_nothing(run, method):
    headers = {"Authorization": f"Bearer {run.token}"}
    whole = schemathesis.openapi.from_url(f"{run.url}/v1/openapi.json", headers=headers)
    num_tried = 0
    for found in whole.include(path_regex=HARMLESS, method=method).get_all_operations():
        operation = found.ok()

        @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def answers_as_it_says(case):
            # Whether a number of members can be had is for the run to say, not for the document.
            excluded = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]
            case.call_and_validate(headers=headers, excluded_checks=excluded, timeout=20)

        answers_as_it_says()
        num_tried += 1
    assert num_tried == {"GET": 6, "POST": 2}[method]
