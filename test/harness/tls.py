"""A certificate authority of the tests' own."""

import subprocess
from pathlib import Path

SERVER = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"


class Authority:
    """Makes files in `folder`: ca, cert and key for localhost, one client's."""

    def __init__(self, folder, name="etl test authority"):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.ca = self.folder / "ca.pem"
        self.ca_key = self.folder / "ca.key"
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                      "-keyout", self.ca_key, "-out", self.ca)
        self.cert, self.key = self.issue("server", "localhost", SERVER)
        self.client_cert, self.client_key = self.issue("client", "etl", "extendedKeyUsage=clientAuth\n")

    def issue(self, file, common_name, extensions):
        """A certificate and its key; readable by the server's user."""
        cert, key, request, conf = (self.folder / f"{file}.{end}" for end in ("pem", "key", "csr", "cnf"))
        conf.write_text(extensions)
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={common_name}",
                      "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca_key, "-CAcreateserial",
                      "-days", "2", "-extfile", conf, "-out", cert)
        key.chmod(0o644)
        return cert, key

    @staticmethod
    def _openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)
