"""Certificates for TLS, made for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from splatstudio.runtime.channel.tls import TlsFiles

REQUEST = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
REQUEST += ["-nodes", "-subj", "/CN=localhost", "-days", "2"]


def make_certificate(folder: Path, name: str = "own") -> TlsFiles:
    """Return a certificate that has no authority but itself, for localhost, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [*REQUEST, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return TlsFiles(tls_cert=cert, tls_key=key)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """One for all tests that need no other."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))
