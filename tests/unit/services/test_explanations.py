"""Which tablet counts as the slowest in the explanation of a table with tablets?"""

from __future__ import annotations

from scankv.v1 import scan_pb2
from streaming_server.services.tablets.explanations import speed_of


def test_a_tablet_that_reads_an_index_in_its_order_is_faster_than_one_that_collects_candidates() -> None:
    scans = scan_pb2.ExplainScanResponse(read_path=scan_pb2.READ_PATH_ROCKSDB)
    reads_base = scan_pb2.ExplainScanResponse(read_path=scan_pb2.READ_PATH_COLUMNAR)
    collects = scan_pb2.ExplainScanResponse(index=["v"])
    in_order = scan_pb2.ExplainScanResponse(index=["v"], index_order=True)
    assert sorted([in_order, collects, reads_base, scans], key=speed_of) == [scans, reads_base, collects, in_order]
