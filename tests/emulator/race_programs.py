"""Random programs that touch memory, and what a graph searched by brute force says of their races.

`Machine` runs a program on the emulated device with `Races`; `Book` keeps every access ever made and every edge that
the rules promise, and looks for a path between two accesses by walking. They share nothing but the addresses.
"""

from hypothesis import strategies as st

from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hazards.happens_before import HostWork
from loaderviz.emulator.hazards.races import Races
from loaderviz.emulator.memory import DevicePool, PinnedPool

STREAMS, EVENTS, BLOCKS, BUFFERS = 4, 2, 2, 1
DEFAULT, BLOCKING = 0, 3  # the others are of PyTorch's pool
UNIT = 128  # bytes: the smallest piece that a program touches
UNITS = 4  # of a block


class Graph:
    """Nodes in the order in which they come, each with those directly before it."""

    def __init__(self):
        self.before = []

    def node(self, *before):
        self.before.append([each for each in before if each is not None])
        return len(self.before) - 1

    def reaches(self, earlier, later):
        seen, todo = set(), [later]
        while todo:
            node = todo.pop()
            if node == earlier:
                return True
            if node not in seen and node > earlier:
                seen.add(node)
                todo += self.before[node]
        return False


class Book(Graph):
    """Everything that happened, and nothing forgotten. `without` leaves out the waits of one line."""

    def __init__(self, without=None):
        super().__init__()
        self.without = without
        self.host = self.node()
        self.last = {}  # stream -> node
        self.recorded = {}  # event -> node
        self.stream = {}  # node -> stream
        self.memory = {}  # address in units -> [(node, writes)]
        self.races = []  # for each access: the nodes it is unordered with
        self.number = {}  # node -> number of its access; the same in all books, as nodes are not
        self.over = []  # for memory that waited for an event: the accesses that are over by then

    def next_in(self, stream, *more):
        """A node in a stream. The default stream and the blocking one come after each other (R14, R15)."""
        after = (DEFAULT, BLOCKING) if stream in (DEFAULT, BLOCKING) else (stream,)
        return self.node(self.host, *(self.last[each] for each in after if each in self.last), *more)

    def enqueue(self, stream, *more):
        node = self.next_in(stream, *more)
        self.last[stream], self.stream[node] = node, stream
        return node

    def record(self, event, stream):
        self.recorded[event] = self.enqueue(stream)

    def wait(self, stream, event, line):
        if event in self.recorded and line != self.without:
            self.enqueue(stream, self.recorded[event])

    def host_after(self, *nodes):
        self.host = self.node(self.host, *nodes)

    def unordered(self, node, pieces):
        """Return the nodes that an access by `node` races with. `pieces`: (first unit, last unit + 1, writes)."""
        found = set()
        for start, end, writes in pieces:
            for unit in range(start, end):
                for other, other_writes in self.memory.get(unit, ()):
                    if other != node and (writes or other_writes) and not self.reaches(other, node):
                        found.add(other)
        return found

    def access(self, node, pieces):
        """Note the access."""
        self.number[node] = len(self.races)
        self.races.append(self.unordered(node, pieces))
        for start, end, writes in pieces:
            for unit in range(start, end):
                self.memory.setdefault(unit, []).append((node, writes))

    def handed_back(self, start, end, event):
        """Memory that waits for an event before it is used again: what is before the event is over by then."""
        for unit in range(start, end):
            before = self.memory.get(unit, ())
            self.memory[unit] = [entry for entry in before if not self.reaches(entry[0], event)]
            self.over.append({self.number[node] for node, _ in set(before) - set(self.memory[unit])})


class Machine:
    """A program on the emulated device, on `Races`, and in any number of books."""

    def __init__(self, *books):
        self.runtime = Runtime(Gpu.preset("a100"), Host.preset("laptop"))
        self.races = self.runtime.races = Races(self.runtime.order, self.runtime.builder)
        self.pool, self.pinned = DevicePool(self.runtime), PinnedPool(self.runtime)
        self.streams = [self.runtime.default_stream, *(self.runtime.stream() for _ in range(STREAMS - 2))]
        self.streams.append(self.runtime.stream(blocking=True))
        self.events = [self.runtime.event() for _ in range(EVENTS)]
        self.blocks = [self.pool.allocate(UNIT * UNITS, self.streams[n % STREAMS]) for n in range(BLOCKS)]
        self.buffers = [self.pinned.allocate(UNIT * UNITS) for _ in range(BUFFERS)]
        self.books = books
        self.found = []  # for each access: is it in a race?

    def run(self, program):
        for line, (name, *rest) in enumerate(program):
            self.runtime.source = f"program.py:{line}"
            getattr(self, name)(*rest)
        return self

    def touch(self, work, nodes, *pieces):
        """`pieces`: (block, first unit, units, reads, writes)."""
        for block, first, units, reads, writes in pieces:
            start = block.address + first * UNIT
            self.races.access(work, start, start + units * UNIT, (units,), "u8", block, reads=reads, writes=writes)
        for book, node in zip(self.books, nodes, strict=True):
            book.access(node, in_units(pieces))
        self.found.append(work.in_race)

    def enqueued(self, stream):
        return [book.enqueue(stream) for book in self.books]

    def host_knows(self, what):
        for book in self.books:
            book.host_after(*(node for node in what(book) if node is not None))

    # The operations

    def kernel(self, stream, duration, pieces):
        command = self.runtime.launch(duration, self.streams[stream])
        self.touch(
            command, self.enqueued(stream),
            *((self.blocks[block], first, units, reads, writes) for block, first, units, reads, writes in pieces),
        )  # fmt: skip

    def copy(self, stream, direction, buffer, block, first, units, pinned, blocking):
        command = self.runtime.memcpy(
            units * UNIT * 1000, direction, self.streams[stream], pinned=pinned, blocking=blocking
        )
        up = direction == "h2d"
        device = (self.blocks[block], first, units, not up, up)
        host = (self.buffers[buffer], first, units, up, not up)
        nodes = self.enqueued(stream)
        self.touch(command, nodes, *((device, host) if pinned else (device,)))
        if pinned and not blocking:
            self.pinned.use(self.buffers[buffer], self.streams[stream])
        if blocking or (not up and not pinned):
            self.host_knows(lambda book: [book.last[stream]])

    def record(self, event, stream):
        self.runtime.record_event(self.events[event], self.streams[stream])
        for book in self.books:
            book.record(event, stream)

    def wait(self, stream, event, line):
        self.runtime.source = f"wait.py:{line}"
        self.runtime.wait_event(self.streams[stream], self.events[event])
        for book in self.books:
            book.wait(stream, event, line)

    def order(self, before, after):
        """Let a stream (None: the host) wait for another one; numbers are those of traces."""
        first, second = (next((s for s in self.streams if s.number == number), None) for number in (before, after))
        self.runtime.wait_stream(second, first) if second else self.runtime.synchronize(first)

    def query(self, event):
        over = self.runtime.query(self.events[event])
        if over:
            self.host_knows(lambda book: [book.recorded.get(event)])

    def synchronize_event(self, event):
        self.runtime.synchronize(self.events[event])
        self.host_knows(lambda book: [book.recorded.get(event)])

    def synchronize_stream(self, stream):
        self.runtime.synchronize(self.streams[stream])
        self.host_knows(lambda book: [book.last.get(stream)])

    def synchronize_device(self):
        self.runtime.synchronize()
        self.host_knows(lambda book: list(book.last.values()))

    def renew(self, block, stream, recorded):
        """Drop a block (perhaps recorded on a stream) and take another of the same size for `stream`."""
        old = self.blocks[block]
        uses_it = self.streams[recorded] if recorded is not None else old.stream
        self.pool.record_stream(old, uses_it)
        self.pool.free(old)
        if uses_it is not old.stream:
            for book in self.books:
                book.handed_back(old.address // UNIT, old.end // UNIT, book.enqueue(uses_it.id))
        self.runtime.host_work(2_000_000)  # all is over by now, which orders nothing
        self.blocks[block] = self.pool.allocate(UNIT * UNITS, self.streams[stream])

    def renew_buffer(self, buffer):
        old = self.buffers[buffer]
        self.pinned.free(old)
        for stream in old.streams:
            for book in self.books:
                book.handed_back(old.address // UNIT, old.address // UNIT + UNITS, book.enqueue(stream))
        self.buffers[buffer] = self.pinned.allocate(UNIT * UNITS)

    def host(self, buffer, first, units, writes):
        work = HostWork("aten::copy_", -1, self.runtime.source)
        for book in self.books:
            book.host_after()
        nodes = [book.host for book in self.books]
        self.touch(work, nodes, (self.buffers[buffer], first, units, not writes, writes))


def in_units(pieces):
    return [(b.address // UNIT + first, b.address // UNIT + first + units, w) for b, first, units, _, w in pieces]


def mended(program):
    """Return the program with waits put in, by lines 0 to 2, so that nothing in it races."""
    book, done = Book(), []
    machine = Machine(book)
    for place, operation in enumerate(program):
        name, *rest = operation
        pieces = []
        if name == "kernel":
            pieces = [(machine.blocks[block], *piece) for block, *piece in rest[2]]
        elif name == "copy":
            _, direction, buffer, block, first, units, pinned, _ = rest
            up = direction == "h2d"
            pieces = [(machine.blocks[block], first, units, not up, up)]
            pieces += [(machine.buffers[buffer], first, units, up, not up)] * pinned
        elif name == "host":
            pieces = [(machine.buffers[rest[0]], rest[1], rest[2], not rest[3], rest[3])]
        node = book.next_in(rest[0]) if name in ("kernel", "copy") else book.node(book.host)
        for stream in sorted({book.stream[other] for other in book.unordered(node, in_units(pieces))}):
            event = place % EVENTS
            wait = ("synchronize_event", event) if name == "host" else ("wait", rest[0], event, place % 3)
            done += [("record", event, stream), wait]
            machine.run(done[-2:])
        done.append(operation)
        machine.run(done[-1:])
    assert not any(book.races)
    return done


def index(count):
    return st.integers(0, count - 1)


views = st.tuples(index(UNITS), st.integers(1, UNITS)).map(lambda view: (view[0], min(view[1], UNITS - view[0])))
modes = st.sampled_from([(True, False), (False, True), (True, True)])
pieces = st.lists(
    st.tuples(index(BLOCKS), views, modes).map(lambda piece: (piece[0], *piece[1], *piece[2])), min_size=1, max_size=2,
    unique_by=lambda piece: piece[0],
)  # fmt: skip
kernels = st.tuples(st.just("kernel"), index(STREAMS), st.sampled_from([1_000, 400_000]), pieces)
copies = st.tuples(
    st.just("copy"), index(STREAMS), st.sampled_from(["h2d", "d2h"]), index(BUFFERS), index(BLOCKS), views,
    st.sampled_from([True, True, False]), st.sampled_from([False, False, True]),
).map(lambda copy: (*copy[:5], *copy[5], *copy[6:]))  # fmt: skip
records = st.tuples(st.just("record"), index(EVENTS), index(STREAMS))
waits = st.tuples(st.just("wait"), index(STREAMS), index(EVENTS), index(3))
hosts = st.tuples(st.just("host"), index(BUFFERS), views, st.booleans()).map(
    lambda host: (*host[:2], *host[2], host[3])
)
operations = st.one_of(
    kernels, kernels, kernels, copies, copies, records, records, records, waits, waits, waits,
    st.tuples(st.just("query"), index(EVENTS)),
    st.tuples(st.just("synchronize_event"), index(EVENTS)),
    st.tuples(st.just("synchronize_stream"), index(STREAMS)),
    st.tuples(st.just("synchronize_device")),
    *2 * [st.tuples(st.just("renew"), index(BLOCKS), index(STREAMS), st.one_of(st.none(), index(STREAMS)))],
    st.tuples(st.just("renew_buffer"), index(BUFFERS)),
    hosts,
)  # fmt: skip
programs = st.lists(operations, min_size=10, max_size=30) | st.lists(operations, max_size=15)
right_programs = programs.map(mended)


@st.composite
def near_misses(draw):
    """A right program of which an operation is left out."""
    program = draw(right_programs)
    if program:
        del program[draw(index(len(program)))]
    return program
