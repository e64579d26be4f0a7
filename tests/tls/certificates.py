"""Certificates, made with the command openssl as docs/security.md says."""

from __future__ import annotations

import os
import pathlib
import subprocess

LOOPBACK = "IP:127.0.0.1"


def openssl(*arguments: object, text: str | None = None) -> str:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, place: pathlib.Path, name: str = "authority"):
        place.mkdir(exist_ok=True)
        self.place, self.name = place, name
        self.path = place / f"{name}.pem"
        self.key = place / f"{name}-key.pem"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self.key, "-out", self.path, "-days", 30, "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, subject: str = LOOPBACK, *, expired: bool = False) -> Certificate:
        """A certificate for a host. :param subject: its subjectAltName."""
        return Certificate(self, name, subject, expired)


class Certificate:
    def __init__(self, authority: Authority, name: str, subject: str, expired: bool):
        place = authority.place
        self.authority = authority
        self.path, self.key = place / f"{name}.pem", place / f"{name}-key.pem"
        request = place / f"{name}.csr"
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self.key, "-out", request, "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={subject}"),
        )
        if expired:
            self._sign_in_the_past(request)
        else:
            openssl(
                *("x509", "-req", "-in", request, "-CA", authority.path, "-CAkey", authority.key),
                *("-CAcreateserial", "-days", 30, "-copy_extensions", "copy", "-out", self.path),
            )
        os.chmod(self.key, 0o600)

    def _sign_in_the_past(self, request: pathlib.Path) -> None:
        """`openssl x509` cannot choose the dates; `openssl ca` can."""
        place = self.authority.place
        (place / "database").write_text("")
        (place / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=here\n[here]\ndatabase={place}/database\nnew_certs_dir={place}\n"
            "rand_serial=yes\ndefault_md=sha256\npolicy=any\ncopy_extensions=copy\n"
            "[any]\ncommonName=supplied\n"
        )
        openssl(
            *("ca", "-batch", "-config", place / "ca.cnf", "-in", request, "-out", self.path),
            *("-cert", self.authority.path, "-keyfile", self.authority.key, "-notext"),
            *("-startdate", "20200101000000Z", "-enddate", "20200102000000Z"),
        )

    def environment(self, authority: Authority | None = None) -> dict[str, str]:
        """The variables with which a member uses it and trusts an authority."""
        return {
            "WHERRY_TLS_CERT": str(self.path),
            "WHERRY_TLS_KEY": str(self.key),
            "WHERRY_TLS_CA": str((authority or self.authority).path),
        }
