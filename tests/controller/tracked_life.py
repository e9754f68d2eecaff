"""One life of a run with a tracker, cut off from the network: `tracked_life.py TRACKER RUN_DIR RESUME_STEP LAST_STEP`.

Prints each host that was asked for.
"""

import socket
import sys
import time
from pathlib import Path

from dspark_train.controller.step_log import StepLog
from dspark_train.controller.trackers import Tracking, opener
from dspark_train.plan.run_layout import RunLayout

SETTINGS = {"algorithm": "dspark", "lr": 0.1}
CLOSE_TIMEOUT_S = 120.0


def cut_off():
    """Let no look-up and no connection leave the machine."""
    connect = socket.socket.connect

    def refuse(host, *_, **__):
        print(f"asked for {host}", flush=True)
        raise OSError(f"cut off from {host}")

    def connect_here(self, address):
        if self.family != socket.AF_UNIX and not address[0].startswith("127."):
            refuse(address)
        return connect(self, address)

    socket.getaddrinfo = socket.gethostbyname = refuse
    socket.socket.connect = connect_here


def main(name, root, resume_step, last_step):
    layout = RunLayout(Path(root))
    tracking = Tracking(name, opener(name), layout, SETTINGS)
    log = StepLog(layout, resume_step, [tracking])
    if resume_step == 0:
        log.append("validate", 0, {"loss": 20.0})
    for step in range(resume_step + 1, last_step + 1):
        log.append("train", step, {"loss": 10.0 - step, "tokens": 100, "step_s": 0.5, "data_hash": "ab"})
        if step % 2 == 0:
            log.append("validate", step, {"loss": 20.0 - step})
    began_s = time.monotonic()
    tracking.close(CLOSE_TIMEOUT_S)
    log.close()
    print(f"closed after {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    cut_off()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
