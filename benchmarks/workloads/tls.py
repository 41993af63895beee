"""Compares a full scan of T4 over TLS with the same scan without encryption."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from aio_client import Tls
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, paired_ratios, progress
from benchmarks.proc import cpu_seconds
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

_PLAIN, _TLS = "without TLS", "with TLS"
_SCANS = 3  # in each round, because one scan is short compared with the noise of a shared machine


def run(bench: Bench) -> Result:
    """Reads T4 from a server with TLS and from one without, in turn."""
    certificate, key = _make_certificate(bench.directory)
    store = bench.store
    with (
        BenchmarkServer(store.copy("plain")) as plain,
        BenchmarkServer(store.copy("tls"), tls_certificate=certificate, tls_key=key) as secured,
        Worker(ClientReader, plain.url) as plain_client,
        Worker(ClientReader, secured.url, tls=Tls(ca=certificate)) as secured_client,
    ):
        seconds: dict[str, list[float]] = {_PLAIN: [], _TLS: []}
        cpu: dict[str, list[float]] = {_PLAIN: [], _TLS: []}
        for number in range(-1, bench.runs):
            for name, server, client in ((_PLAIN, plain, plain_client), (_TLS, secured, secured_client)):
                client.wait_ready()
                before = cpu_seconds(server.pid) + cpu_seconds(client.pid)
                timings = [client.call(ClientReader.read).check_rows(store.rows) for _ in range(_SCANS)]
                if number >= 0:
                    cpu[name].append(cpu_seconds(server.pid) + cpu_seconds(client.pid) - before)
                    seconds[name].append(sum(timing.seconds for timing in timings))
                    progress(
                        f"  run {number + 1} of {bench.runs}: {name:<12} {seconds[name][-1]:.2f} s,"
                        f" {cpu[name][-1]:.2f} s of processor time"
                    )
    rows = _SCANS * store.rows
    return Result(
        figures=[
            Figure(
                name="tls_scan_rate",
                work="full scan over TLS, rows/s",
                against="the same scan without TLS",
                unit="ratio",
                spread=paired_ratios(seconds[_PLAIN], seconds[_TLS]),
                at_least=0.75,
            ),
            Figure(
                name="tls_scan_cpu",
                work="the same: processor time of both sides",
                against="the same scan without TLS",
                unit="times",
                spread=paired_ratios(cpu[_TLS], cpu[_PLAIN]),
                at_most=1.33,
            ),
        ],
        tables=[
            ResultTable(
                "Full scan with and without TLS",
                ("", "rows/s", "least", "greatest", "processor time of 1,000,000 rows in s"),
                [
                    (name, spread.median, spread.least, spread.greatest, Spread.of(cpu[name]).median * 1e6 / rows)
                    for name in (_PLAIN, _TLS)
                    for spread in (Spread.of(rows / each for each in seconds[name]),)
                ],
            )
        ],
        notes=[
            "Two servers and two clients take turns, after one round that does not count. They connect over loopback, "
            "where nothing but the processor limits the rate, so TLS costs more here than over a network. The "
            "connections stay open: handshakes are not measured."
        ],
    )


def _make_certificate(directory: Path) -> tuple[str, str]:
    """Makes a certificate for 127.0.0.1 that signs itself. Returns the paths of the certificate and its key."""
    # Imported on use, because only this benchmark needs it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "tls.pem", directory / "tls.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(certificate_path), str(key_path)
