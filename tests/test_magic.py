"""`%%timeline`: a notebook's cell, recorded, with its picture and numbers."""

import nbclient
import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from loaderviz.magic import Options
from loaderviz.timeline import Kind, Timeline

VIEW = 'class="lv-view"'
WORK = "x = torch.ones(1000).to('cuda')\nx.sum().item()"


@pytest.fixture(scope="module")
def notebook():
    shell = InteractiveShell.instance()
    assert shell.run_cell("%load_ext loaderviz\nimport torch").success
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell):
    """Run a cell; return its result, what it printed, and what was displayed."""
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    return result, shown, [output.data for output in shown.outputs if "text/plain" in output.data]


@pytest.mark.parametrize("color", ["kind", "batch"])
def test_it_shows_the_picture_and_the_numbers_and_keeps_the_timeline(notebook, color):
    result, _, (picture, numbers) = run(notebook, f"%%timeline on=t4 color={color} mine\n{WORK}")
    assert result.success
    assert VIEW in picture["text/html"] and f'"color":"{color}","window"' in picture["text/html"]
    assert "GPU computes" in picture["text/plain"]
    assert "headroom" in numbers["text/html"]
    timeline = notebook.user_ns["mine"]
    assert isinstance(timeline, Timeline)
    assert timeline.context.device == "Tesla T4"
    assert timeline.where(Kind.COPY_H2D).sum() == 1
    assert notebook.user_ns["x"].shape == (1000,)  # the cell's names are the notebook's


@pytest.mark.parametrize(
    ("cell", "printed", "value"),
    [
        (WORK, "", True),
        (f"{WORK};", "", False),
        ("x = torch.ones(10).cuda()\nif True:\n    y = x + 1", "", False),
        ("!echo from the shell\n%who_ls Timeline\ntorch.ones(3).cuda();", "from the shell", False),
    ],
)
def test_it_runs_and_shows_its_last_expression_as_any_cell(notebook, cell, printed, value):
    result, shown, displayed = run(notebook, f"%%timeline on=t4\n{cell}")
    assert result.success and len(displayed) == 2
    assert printed in shown.stdout
    assert ("1000.0" in shown.stdout) is value


def test_options_of_record_are_passed_on(notebook):
    loop = "from loaderviz.loaders import BlockingLoader\nfor x in BlockingLoader([torch.ones(10)] * 6):\n    x + 1\n"
    run(notebook, f"%%timeline on=h200 host=workstation hazards=off wait=2 steps=3 part\n{loop}")
    timeline = notebook.user_ns["part"]
    assert (timeline.context.device, timeline.context.host.split(" ")[0]) == ("NVIDIA H200", "workstation")
    assert sorted({span.batch for span in timeline.rows(Kind.COPY_H2D)}) == [2, 3, 4]


def test_races_are_shown(notebook):
    _, shown, displayed = run(
        notebook,
        "%%timeline on=t4\nside = torch.cuda.Stream()\nhost = torch.ones(1 << 20).pin_memory()\n"
        "with torch.cuda.stream(side):\n    y = host.to('cuda', non_blocking=True)\ny.sum();",
    )
    assert len(displayed) == 3
    assert "early-read" in displayed[-1]["text/html"]
    assert "HazardWarning" not in shown.stderr


def test_an_error_in_the_cell_is_that_of_a_normal_cell(notebook):
    result, shown, _ = run(notebook, "%%timeline on=t4 until\nx = torch.ones(3).cuda()\n\nx @ torch.ones(5).cuda()\n")
    assert not result.success
    assert isinstance(result.error_in_exec, RuntimeError)
    assert f"In[{result.execution_count}]" in shown.stdout
    assert "line 4" in shown.stdout  # as the reader counts, from the magic's own line
    assert "magic.py" not in shown.stdout
    assert "emulator" not in shown.stdout
    assert notebook.user_ns["until"].where(Kind.COPY_H2D).sum() == 2  # what was recorded until then
    result, *_ = run(notebook, f"%%timeline on=t4\n{WORK}")
    assert result.success  # nothing of the failed recording is left


def test_a_syntax_error_is_one(notebook):
    result, shown, _ = run(notebook, "%%timeline on=t4\nx = 1\nfor in y:\n    pass")
    assert isinstance(result.error_in_exec, UsageError)
    assert 'File "this cell", line 3' in shown.stderr and "SyntaxError: invalid syntax" in shown.stderr
    assert "magic.py" not in shown.stderr + shown.stdout


def test_an_interrupt_keeps_what_was_recorded(notebook):
    result, _, displayed = run(notebook, f"%%timeline on=t4 half\n{WORK}\nraise KeyboardInterrupt")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert len(notebook.user_ns["half"]) and len(displayed) == 2


@pytest.mark.parametrize(("cell", "error"), [("number = 1", None), ("import surely_not_a_module", ModuleNotFoundError)])
def test_a_cell_without_a_gpu_is_told_so_unless_it_crashed(notebook, cell, error):
    result, shown, _ = run(notebook, f"%%timeline on=t4 empty\n{cell}")
    assert type(result.error_in_exec) is (error or type(None))
    assert ("nothing was recorded; the cell put no work on 'cuda'" in shown.stdout) is (error is None)
    assert len(notebook.user_ns["empty"]) == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("colour=kind", "no option 'colour'; there are on, host, copies, hazards, wait, steps, color"),
        ("color=red", "color=red: choose color=batch or color=kind"),
        ("on=voodoo2", "no GPU preset 'voodoo2'; choose one of: "),
        ("wait=one", "wait=one: give a whole number of steps"),
        ("steps=0", "steps=0"),
        ("a b", "two names, 'a' and 'b'; a timeline has one"),
        ("3rd", "'3rd' is neither an option nor a name"),
        ("copies=later", "'on_wait' or 'eager'"),
        ("'open", "No closing quotation"),
    ],
)
def test_a_wrong_option_is_one_clear_sentence(notebook, line, complaint):
    result, shown, _ = run(notebook, f"%%timeline {line}\nran = True")
    assert isinstance(result.error_in_exec, UsageError)
    assert complaint in shown.stderr
    assert "Traceback" not in shown.stdout + shown.stderr
    assert "ran" not in notebook.user_ns


def test_the_line_is_read_as_written():
    options = Options.parse("on=a100 color=kind run_3 wait=2  # a remark")
    assert (options.name, options.color, options.record) == ("run_3", "kind", {"on": "a100", "wait": 2})
    assert Options.parse("") == Options()


@pytest.mark.notebook
def test_in_a_notebook():
    cells = [
        "%load_ext loaderviz\nimport torch",
        f"%%timeline on=t4 color=kind mine\n{WORK}",
        "%%timeline on=t4\nx = torch.ones(3).cuda()\nx @ torch.ones(5).cuda()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3", allow_errors=True).execute()
    first, second, third = (cell["outputs"] for cell in book.cells)
    assert first == []
    assert [output["output_type"] for output in second] == ["execute_result", "display_data", "display_data"]
    assert second[0]["data"]["text/plain"] == "1000.0"
    assert VIEW in "".join(second[1]["data"]["text/html"])
    assert "<table>" in second[2]["data"]["text/html"]
    assert (third[-1]["output_type"], third[-1]["ename"]) == ("error", "RuntimeError")
    assert not any("magic.py" in line for line in third[-1]["traceback"])
