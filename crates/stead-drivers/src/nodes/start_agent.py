#!/usr/bin/env python3
"""Starts the agent of a node at its first boot.

Fetches stead from the server that `bootstrap.json` names, unless it is there, and has it become the node's agent. Python
is there because cloud-init is. Not a byte of HTTP, and so no token, goes to a server whose certificate is not pinned;
what comes is used only if it has the hash that was told.
"""

import hashlib
import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse

ATTEMPTS = 30
PAUSE = 2.0
PATIENCE = 60.0
PIECE = 1 << 20


class Untrusted(Exception):
    """Somebody else answers, or something else came: trying again does not help."""


def fetch(told, file):
    """Writes the program that `told` names to `file`."""
    server = urllib.parse.urlsplit(told["server"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection((server.hostname, server.port or 443), timeout=PATIENCE)
    with plain, context.wrap_socket(plain) as secured:
        digest = hashlib.sha256(secured.getpeercert(binary_form=True)).hexdigest().upper()
        found = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
        if found not in told["fingerprints"]:
            raise Untrusted(f"E501: the server's certificate is {found}, not {told['fingerprints']}")
        connection = http.client.HTTPSConnection(server.hostname, server.port or 443)
        connection.sock = secured
        path = "/v1/artifacts/sha256/" + told["binary_sha256"]
        connection.request("GET", path, headers={"Authorization": "Bearer " + told["token"]})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"the server answered {answer.status} for {path}")
        hashed = hashlib.sha256()
        while piece := answer.read(PIECE):
            hashed.update(piece)
            file.write(piece)
    if hashed.hexdigest() != told["binary_sha256"]:
        raise Untrusted(f"{path} has another hash: {hashed.hexdigest()}")


def program(told, root):
    """Returns the program, fetched if it is not there yet."""
    place = root / "var/lib/stead/bin" / told["binary_sha256"] / "stead"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(".new")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with open(new, "wb") as file:
                fetch(told, file)
            break
        except Untrusted:
            new.unlink()
            raise
        except OSError as error:
            if attempt == ATTEMPTS:
                raise
            print(f"stead: {error}; trying again", file=sys.stderr)
            time.sleep(PAUSE)
    new.chmod(0o755)
    new.rename(place)
    return place


def main():
    root = pathlib.Path(os.environ.get("STEAD_ROOT", "/"))
    bootstrap = root / "etc/stead/bootstrap.json"
    text = bootstrap.read_bytes()
    stead = program(json.loads(text), root)
    # `agent enable` starts an agent for what is new to it.
    aside = bootstrap.with_name(".bootstrap.json")
    bootstrap.rename(aside)
    try:
        subprocess.run([stead, "agent", "enable"], input=text, check=True)
    except BaseException:
        aside.rename(bootstrap)
        raise
    aside.unlink()


if __name__ == "__main__":
    try:
        main()
    except (Untrusted, OSError, KeyError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"stead: the agent is not started: {error}")
