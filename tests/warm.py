"""Python, where it is safe without the seconds in which it imports torch: a process that has it forks.

`python -IS tests/warm.py SOCKET WORDS` stands for `python WORDS`, which a process serves at this socket: a module (-m),
code (-c) or a file, and its arguments.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).parents[1]
ALONE = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); del sys.argv[0]; "
ALONE += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


class Warm:
    """Starts one Python at a time, in a session of its own; what it prints goes to the files `out` and `err`.

    `modules` are imported before; where no process can be forked so, it is a new Python.
    """

    def __init__(self, folder, *modules):
        self.out, self.err, self.socket = folder / "out", folder / "err", str(folder / "socket")
        self._modules, self._server = modules, None
        self._session = 0  # of the command that runs

    def serve(self):
        """Begin the process that forks."""
        if not self._server:
            command = [sys.executable, __file__, "--serve", self.socket, *self._modules]
            options = {
                "env": os.environ | {"PYTHONPATH": str(ROOT)},
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
            }
            self._server = subprocess.Popen(command, **options, start_new_session=True)
            assert self._server.stdout.readline() == b"ready\n"

    def start(self, *command, folder, **environment):
        """Begin Python with these words in a folder, and return the process's number."""
        command, environment = [*map(str, command)], os.environ | {"PYTHONPATH": str(ROOT)} | environment
        with open(os.devnull) as nothing, self.out.open("wb") as out, self.err.open("wb") as err:
            if sys.platform == "linux":
                self.serve()
                self._asker, self._session = asked(self.socket, command, folder, environment, (nothing, out, err))
            else:
                words = [sys.executable, *(["-c", ALONE, *command[1:]] if command[0] == "-m" else command)]
                options = {"stdout": out, "stderr": err, "cwd": folder, "env": environment}
                self._alone = subprocess.Popen(words, **options, start_new_session=True)
                self._session = self._alone.pid
        return self._session

    def ended(self):
        """Wait for its end, and return its exit status."""
        if self._server:
            with self._asker:
                status = os.waitstatus_to_exitcode(int(self._asker.recv(20)))
        else:
            status = self._alone.wait()
        self._session = 0
        return status

    def run(self, *command, folder, **environment):
        """Let it run to its end, and return its status and what it printed."""
        self.start(*command, folder=folder, **environment)
        return SimpleNamespace(returncode=self.ended(), stdout=self.out.read_text(), stderr=self.err.read_text())

    def kernels(self):
        """Return a folder in which Jupyter finds a kernel that is such a fork: set JUPYTER_PATH to it."""
        from ipykernel.kernelspec import get_kernel_dict

        self.serve()
        command = [sys.executable, "-IS", __file__, self.socket, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        file = self.out.parent / "kernels" / "python3" / "kernel.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(get_kernel_dict() | {"argv": command}))
        return str(self.out.parent)

    def close(self):
        if self._session:
            os.killpg(self._session, signal.SIGKILL)
        if self._server:
            self._server.communicate()  # it ends with its input


def asked(server, command, folder, environment, files):
    """Begin Python with these words; return the connection, on which its status comes, and the process's number."""
    asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asker.connect(server)
    message = json.dumps([command, str(folder), dict(environment)]).encode()
    socket.send_fds(asker, [message], [file if isinstance(file, int) else file.fileno() for file in files])
    return asker, int(asker.recv(20))


def stand_in(server, command):
    """Be the process that was started: pass signals on, and end as the fork ends."""
    asker, process = asked(server, command, os.getcwd(), os.environ, (0, 1, 2))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(process, number))
    status = os.waitstatus_to_exitcode(int(asker.recv(20)))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def served(path, *modules):
    """Fork for whoever asks, and return in the fork what it shall do; end with the standard input."""
    for name in modules:
        __import__(name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        asker, _ = listening.accept()
        if not os.fork():
            listening.close()
            message, files, *_ = socket.recv_fds(asker, 1 << 20, 3)
            if process := os.fork():
                keep(asker, process)
            asker.close()
            return json.loads(message), files
        asker.close()
        reap()
    reap()
    sys.exit()


def reap():
    """Let go of the keepers that have ended, whose processor time is this process's from then on."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def keep(asker, process):
    """Tell a fork's number and how it ended; end it if nobody asks any more."""
    asker.send(b"%d" % process)
    if asker in select.select([asker, os.pidfd_open(process)], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    with suppress(OSError):
        asker.send(b"%d" % status)
    os._exit(0)


def become(command, folder, environment, files):
    """Be in this process what Python is with these words."""
    import multiprocessing.process
    import runpy
    import tempfile

    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    multiprocessing.process.ORIGINAL_DIR = folder
    kind, *more = command
    if kind == "-m":
        sys.path[0], sys.argv[:] = folder, more
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if kind == "-c":
        file, code, sys.path[0], sys.argv[:] = "<string>", more[0], "", ["-c", *more[1:]]
    else:
        file = main.__file__ = os.path.abspath(kind)
        code, sys.path[0], sys.argv[:] = Path(file).read_text(encoding="utf-8"), os.path.dirname(file), command
    exec(compile(code, file, "exec"), main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        given, files = served(*sys.argv[2:])
        become(*given, files)
    else:
        stand_in(sys.argv[1], sys.argv[2:])
