"""A JupyterLab of the tests' own: its folders, a free port, no token."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode


@contextmanager
def jupyterlab(
    folder: Path, notebooks: dict[str, NotebookNode], *, theme: str = "Light"
) -> Iterator[str]:
    """Serve notebooks, whose outputs are trusted, from a folder; yield the server's address.

    Without trust, JupyterLab removes styles and frames from outputs.
    """
    import nbformat
    from nbformat.sign import NotebookNotary

    config = {
        name: str(folder / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    config |= {
        f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")
    }
    root = folder / "notebooks"
    root.mkdir(parents=True)
    data = Path(config["JUPYTER_DATA_DIR"])
    data.mkdir()
    for name, notebook in notebooks.items():
        NotebookNotary(data_dir=str(data)).sign(notebook)
        nbformat.write(notebook, root / name)
    settings = Path(config["JUPYTERLAB_SETTINGS_DIR"]) / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    for name, values in {
        "notification": {"fetchNews": "false", "checkForUpdates": False},
        "themes": {"theme": f"JupyterLab {theme}"},
    }.items():
        (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": root,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | config, cwd=folder)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/api", server, folder / "log")
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")
