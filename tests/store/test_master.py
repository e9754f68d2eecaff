import stat
import sys

import pytest

from dspark_train.errors import StartError, StoreError
from dspark_train.store.master_process import MasterFigures, MasterProcess, parse_figures
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.store.ports import AddressInUse, reserve_port

METRICS = """# HELP master_allocated_bytes Total memory bytes currently allocated across all segments
# TYPE master_allocated_bytes gauge
master_allocated_bytes 4096
master_total_capacity_bytes 536870912
master_key_count 3
master_active_clients 2
master_value_size_bytes_bucket{le="4096.000000"} 2
master_evicted_key_count 1
"""


def program(tmp_path, text: str) -> str:
    path = tmp_path / "mooncake_master"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_figures_are_read_from_the_masters_metrics():
    assert parse_figures(METRICS) == MasterFigures(
        capacity_bytes=536870912, used_bytes=4096, num_keys=3, num_evicted=1, num_clients=2
    )


def test_a_figure_that_is_not_there_is_named():
    with pytest.raises(StoreError, match="has no master_evicted_key_count"):
        parse_figures(METRICS.replace("evicted_key", "other"))


def test_a_missing_library_names_the_packages_to_install(tmp_path):
    text = (
        "raise SystemExit('mooncake_master: error while loading shared libraries: libibverbs.so.1: "
        "cannot open shared object file: No such file or directory')"
    )
    master = MasterProcess([program(tmp_path, text)], {}, tmp_path / "m.log", "127.0.0.1:1", "127.0.0.1:1")
    with pytest.raises(
        StartError, match=r"libibverbs.so.1 is missing.*apt-get install libibverbs1 librdmacm1 libnuma1"
    ):
        master.start(20)


def test_a_master_that_does_not_serve_in_time_is_ended(tmp_path):
    text = "import time; time.sleep(600)"
    master = MasterProcess([program(tmp_path, text)], {}, tmp_path / "m.log", "127.0.0.1:1", "127.0.0.1:1")
    with pytest.raises(StartError, match=r"did not serve 127.0.0.1:1 within 0.2 s"):
        master.start(0.2)
    assert not master.alive()


@pytest.mark.real
def test_the_real_master_counts_segments_objects_and_bytes(mooncake_master):
    before = mooncake_master.figures()
    client = MooncakeClient(
        local_hostname="127.0.0.1",
        master=mooncake_master.rpc,
        segment_bytes=32 * 2**20,
        buffer_bytes=16 * 2**20,
        timeout_s=20,
    )
    client.put("figures", b"x" * 4096, client.segment)
    figures = mooncake_master.figures()
    client.close()
    assert figures.capacity_bytes - before.capacity_bytes == 32 * 2**20
    assert figures.used_bytes - before.used_bytes == 4096
    assert figures.num_keys - before.num_keys == 1
    assert figures.num_evicted == 0


@pytest.mark.real
def test_a_taken_port_is_told_from_other_failures(mooncake_master, tmp_path):
    reserved = reserve_port()
    rpc_port = mooncake_master.rpc.rpartition(":")[2]
    argv = ["mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={rpc_port}", "--metrics_host=127.0.0.1"]
    other = MasterProcess(
        [*argv, f"--metrics_port={reserved.port}"],
        {},
        tmp_path / "m.log",
        mooncake_master.rpc,
        f"127.0.0.1:{reserved.port}",
    )
    with pytest.raises(AddressInUse, match=f"somebody else listens on port {rpc_port}"):
        other.start(20)
    reserved.release()
