"""What is wanted, on disk."""

from concurrent.futures import ThreadPoolExecutor

from dspark_train.controller.roster import Roster


def test_threads_that_write_at_once_leave_a_whole_file_and_no_error(tmp_path):
    roster, path = Roster(num_desired={"inference": 1, "trainers": 2}), tmp_path / "roster.json"
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(roster.write, path) for _ in range(80)]:
            done.result()
    found = Roster.read(path)
    assert found is not None
    assert found.num_desired == roster.num_desired
