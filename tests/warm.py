"""`python -m loaderviz`, where it is safe without the seconds in which Python imports torch: one that has it forks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
COMMAND = "runpy.run_module('loaderviz', run_name='__main__', alter_sys=True)"
ALONE = f"import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND}"
SERVER = f"""
import json, os, runpy, signal, sys, tempfile
import torch.utils.data
import loaderviz.cli, loaderviz.recording, loaderviz.emulator.torch, loaderviz.view, loaderviz.analysis.advice
signal.signal(signal.SIGINT, signal.default_int_handler)
for line in sys.stdin:
    command, folder, environment, streams = json.loads(line)
    if not (child := os.fork()):
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None
        for number, file in enumerate([os.devnull, *streams]):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv[1:] = command
        {COMMAND}
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Warm:
    """Starts one command at a time, in a session of its own; what it prints goes to the files `out` and `err`."""

    def __init__(self, folder):
        self.out, self.err, self._server = folder / "out", folder / "err", None
        self._session = 0  # of the command that runs

    def start(self, *command, folder, **environment):
        """Begin `python -m loaderviz` with these words in a folder, and return the process's number."""
        command, own = [*map(str, command)], os.environ | {"PYTHONPATH": str(ROOT)}
        python, pipes = [sys.executable, "-c"], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        if sys.platform != "linux":
            with self.out.open("wb") as out, self.err.open("wb") as err:
                self._alone = subprocess.Popen([*python, ALONE, *command], stdout=out, stderr=err, cwd=folder,
                                               env=own | environment, start_new_session=True)  # fmt: skip
            self._session = self._alone.pid
            return self._session
        if not self._server:
            self._server = subprocess.Popen([*python, SERVER], env=own, text=True, start_new_session=True, **pipes)
        self.out.write_text(""), self.err.write_text("")
        asked = command, str(folder), environment, [str(self.out), str(self.err)]
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        self._session = int(self._server.stdout.readline())
        return self._session

    def ended(self):
        """Wait for its end, and return its exit status."""
        status = int(self._server.stdout.readline()) if self._server else self._alone.wait()
        self._session = 0
        return status

    def run(self, *command, folder):
        """Let it run to its end, and return its status and what it printed."""
        self.start(*command, folder=folder)
        return SimpleNamespace(returncode=self.ended(), stdout=self.out.read_text(), stderr=self.err.read_text())

    def close(self):
        if self._session:
            os.killpg(self._session, signal.SIGKILL)
        if self._server:
            self._server.communicate()  # it ends with its input
